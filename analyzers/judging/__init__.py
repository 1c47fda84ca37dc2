"""Is a result right? One rule a file, and which rule judges which result."""

"""From a lock to a plugin wheel of an inference engine, and from its receipts to a verdict."""

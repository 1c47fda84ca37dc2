"""What a wheel carries: these files are copied into it, and import nothing but the standard library when loaded."""

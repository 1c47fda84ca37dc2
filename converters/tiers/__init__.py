"""Three ways to look pairs of codes up, with the same results."""

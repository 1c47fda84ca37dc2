"""The usual rules, one a file, found by its name: what people compare results with when they have no tool for it."""

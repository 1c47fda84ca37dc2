"""Implementations of a vendor that does not exist, for a device of any kind."""

"""Operators: one file each, found by its name. Nothing is registered at import."""

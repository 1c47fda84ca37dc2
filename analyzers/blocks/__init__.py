"""Blocks: operators that together are one known operator, one file each, found by its name."""

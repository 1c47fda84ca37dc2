"""Refusals: calls that have to be refused. One file each, found by its name."""

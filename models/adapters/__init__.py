"""Adapters: a module of somebody else's model calls an operator of ours, one file each, found by its name."""

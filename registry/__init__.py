"""Implementations, namespaces, resolution, lock and dispatch."""

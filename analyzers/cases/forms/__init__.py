"""Forms: calls derived from a traced one, by layout, size or operator. One file each, found by its name."""

"""What the tensors of a model family are, by name: one file each, found by its name."""

"""Weight formats that a checkpoint can be converted to: one file each, found by its name."""

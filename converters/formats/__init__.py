"""Weight formats that a checkpoint may come in: one file each, found by its name."""

"""Value regimes: what values the inputs of a case have. One file each, found by its name."""

"""What `day0 report verify` recomputes: one file for each kind of evidence."""

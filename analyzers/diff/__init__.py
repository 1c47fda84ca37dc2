"""What changed between two records of one kind, or between two phases of one trace: one file per kind of record."""

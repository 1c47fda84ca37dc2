"""Models that no library has yet, described by the sizes of one that can be built."""

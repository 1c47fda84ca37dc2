"""Weight formats: exact decoding and encoding of low-bit checkpoints."""

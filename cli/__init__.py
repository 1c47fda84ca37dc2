"""The only folder that prints, reads flags and opens run folders."""

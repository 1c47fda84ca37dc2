"""Inputs for traced signatures: values by regime, layouts and ways of calling."""

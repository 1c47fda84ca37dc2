"""Comparisons of our references with other people's code, one file for each operator."""

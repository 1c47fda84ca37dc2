"""Kernels in Triton, one file for each operator; compiled when they are first called."""

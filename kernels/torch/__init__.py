"""Implementations in plain PyTorch: they run on any device that has their leaves."""

"""Canary stages: one file each, found by its number and name."""

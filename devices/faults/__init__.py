"""Planted faults: real porting bugs on the simulated device, each with its source and switchable by name.

One file for each family; a file of this folder that defines `FAULTS` is found by itself.
"""

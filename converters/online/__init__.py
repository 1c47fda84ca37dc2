"""Experts converted while a model runs: a fixed workspace, a cache of slots over it, and recorded routing."""

"""Implementations that ship with day0."""

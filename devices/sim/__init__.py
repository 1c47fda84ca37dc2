"""The simulated device: a real torch device written in Python."""

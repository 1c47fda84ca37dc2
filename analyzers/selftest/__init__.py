"""How good is the check itself? Planted faults found, and legitimate differences let pass."""

"""The stages: trace, inventory, numerics, canary."""

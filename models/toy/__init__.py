"""The toy model: its parts, its weights, what it was trained on, and what mistakes make of it."""

"""How much memory a model needs, what takes it, and on how many cards it runs."""

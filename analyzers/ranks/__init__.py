"""A model on several ranks: one process for each, started by torchrun, held against the model as a whole."""

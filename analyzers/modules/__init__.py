"""The model level of the check: modules, phases and logits against a golden pass."""

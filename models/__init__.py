"""The toy model, and loaders for transformers configs and user factories."""

"""The canary on a server: its answers held against a local reference model or another server."""

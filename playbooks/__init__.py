"""Playbooks: what to run, with which gates."""

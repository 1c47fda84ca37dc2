"""Two ways to call the operators: through torch's dispatcher, or their references directly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from day0.reference_ops.load import load_operators
from day0.reference_ops.torch_ops import NAMESPACE, register_operators

__all__ = ["Calls", "dispatched", "references"]

Calls = Any
"""Holds one function for each operator of ours, under its name without the namespace."""


def dispatched() -> Calls:
    """Return the operators as torch knows them: what a device replaces, a trace sees and a lock routes."""
    register_operators()
    return torch.ops.day0


def references() -> Calls:
    """Return the references themselves, through which gradients flow."""
    prefix = f"{NAMESPACE}::"
    found = {name.removeprefix(prefix): one.reference for name, one in load_operators().items() if prefix in name}
    return SimpleNamespace(**found)

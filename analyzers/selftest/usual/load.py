"""Find the usual rules by their files."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

import torch

from day0.analyzers.selftest import usual

__all__ = ["load_usual"]


@cache
def load_usual() -> dict[str, Callable[[torch.Tensor, torch.Tensor], bool]]:
    """Return by name the functions that say whether two results on the CPU agree."""
    found = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(usual.__path__)):
        if not module.startswith("_") and module != "load":
            rule = importlib.import_module(f"{usual.__name__}.{module}")
            found[rule.NAME] = rule.agrees
    return found

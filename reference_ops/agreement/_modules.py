"""Other people's modules, imported when a comparison runs."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

__all__ = ["automodel", "modeling", "module"]


def module(name: str) -> Any:
    """Return a module as something without types. What it imports on its way may warn of deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(name)


def modeling(model: str) -> Any:
    """Return transformers' file of a model."""
    return module(f"transformers.models.{model}.modeling_{model}")


def automodel(name: str) -> Any:
    """Return nemo-automodel's module of a model, such as `kimi_k3.situ`."""
    return module(f"nemo_automodel.components.models.{name}")

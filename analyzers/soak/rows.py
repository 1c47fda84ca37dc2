"""Let a cache of transformers keep some of its rows, all that it holds of them.

Shape suffixes: R kept rows.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["select_rows"]

SELECTING = ("batch_select_indices", "reorder_cache")
"""Methods of a cache and of its layers that keep the rows of an index, the first for equal descent."""


def select_rows(cache: Any, rows_R: torch.Tensor) -> bool:
    """Keep the rows [R] int64 of a cache, in place; False, and nothing done, where the cache does not know how.

    A layer that holds more than keys and values says in one of the two methods how its rows are kept, and the other
    one, of a class that it descends from, would leave the rest as it was. So the method of the youngest class is
    called; compressed keys of DeepSeek-V4 are only known to `reorder_cache`.
    """
    layers = tuple(getattr(cache, "layers", ()))
    named = [(layer, name) for layer in layers if (name := _youngest(type(layer))) is not None]
    own = _youngest(type(cache))
    if not layers or len(named) < len(layers) or own is None:
        return False
    if _age(type(cache), own) == max(_age(type(cache), name) for name in SELECTING):
        for layer, name in named:
            getattr(layer, name)(rows_R)
        return True
    # The cache holds rows beside its layers, and tells each of them itself.
    if any(_age(type(layer), own) != _age(type(layer), name) for layer, name in named):
        return False
    getattr(cache, own)(rows_R)
    return True


def _youngest(kind: type) -> str | None:
    """Return the method that the class nearest to `kind` defines; None where no class does."""
    known = [name for name in SELECTING if _age(kind, name) < len(kind.__mro__)]
    return min(known, key=lambda name: _age(kind, name), default=None)


def _age(kind: type, name: str) -> int:
    """Return how many classes `kind` descends from before one defines `name`; their number where none does."""
    return next((age for age, one in enumerate(kind.__mro__) if name in vars(one)), len(kind.__mro__))

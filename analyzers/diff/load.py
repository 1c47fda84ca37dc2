"""Find the kinds of records that can be compared: files `kind_<name>.py`, by their names."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from day0.analyzers import diff as package
from day0.analyzers.diff.change import Part
from day0.records import Record

__all__ = ["Kind", "load_kinds"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """How records of one kind are compared."""

    name: str
    record: type[Record]
    compare: Callable[[Any, Any], Part]


def load_kinds() -> tuple[Kind, ...]:
    """Return every kind in the order in which the stages make the records.

    A file `kind_<NN>_<name>.py` holds `RECORD` and `compare(old, new) -> Part`; NN is its place.
    """
    found = []
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda one: one.name):
        if info.name.startswith("kind_"):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            found.append(Kind(name=info.name.split("_", 2)[2], record=module.RECORD, compare=module.compare))
    return tuple(found)

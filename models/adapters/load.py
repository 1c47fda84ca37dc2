"""Find adapters by file name: every module of this folder that defines `ADAPTER`."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from functools import cache
from pathlib import Path

from day0 import reference_ops
from day0.errors import Day0Error, near_names
from day0.hashing import hash_file, hash_json
from day0.models import adapters
from day0.models.adapters._adapter import Adapter
from day0.sources import sources

__all__ = ["ALL", "adapter_hash", "choose_adapters", "load_adapters"]

ALL = "all"
_HELPERS = frozenset({"load", "adapt", "opened"})


@cache
def load_adapters() -> dict[str, Adapter]:
    """Return all adapters by name. Raises Day0Error for a file that does not define one."""
    found: dict[str, Adapter] = {}
    for info in sorted(pkgutil.iter_modules(adapters.__path__), key=lambda one: one.name):
        if info.name.startswith("_") or info.name in _HELPERS:
            continue
        adapter = getattr(importlib.import_module(f"day0.models.adapters.{info.name}"), "ADAPTER", None)
        if not isinstance(adapter, Adapter):
            raise Day0Error(
                f"models/adapters/{info.name}.py",
                "it does not define ADAPTER, an Adapter",
                hint="see models/adapters/rms_norm.py; begin the names of helper files with an underscore",
            )
        found[info.name] = replace(adapter, name=info.name)
    return found


def choose_adapters(names: tuple[str, ...]) -> tuple[Adapter, ...]:
    """Return the adapters of these names, in their order; `all` is every one. Raises Day0Error for an unknown name."""
    known = load_adapters()
    for name in names:
        if name not in (*known, ALL):
            facts = tuple(f"{one.name}: {one.title}" for one in known.values())
            hint = near_names(name, tuple(known)) or "name one of these, or `all` for every one that fits"
            raise Day0Error("--adapt", f"there is no adapter '{name}'", facts=facts, hint=hint)
    return tuple(one for one in known.values() if ALL in names or one.name in names)


def adapter_hash(name: str) -> str:
    """Return the hash of the files in which an adapter stands: what it is, another time."""
    path = Path(str(importlib.import_module(f"day0.models.adapters.{name}").__file__))
    return hash_json([[one.name, hash_file(one)] for one in sources(path, (adapters, reference_ops))])

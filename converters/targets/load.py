"""Find the targets by their files."""

from __future__ import annotations

import functools
from importlib import import_module
from pkgutil import iter_modules

from day0.converters import targets
from day0.converters.targets._target import Target
from day0.errors import Day0Error, near_names

__all__ = ["load_targets", "pick_target"]

SHORT = {"fp8": "fp8-128x128", "int4": "int4-g128"}


@functools.cache
def load_targets() -> dict[str, Target]:
    """Return all targets by name."""
    files = sorted(
        one.name for one in iter_modules(targets.__path__) if not one.name.startswith("_") and one.name != "load"
    )
    found = [import_module(f"{targets.__name__}.{file}").TARGET for file in files]
    return {one.name: one for one in found}


def pick_target(name: str) -> Target:
    """Return a target by its name or its short one. Raises Day0Error for an unknown name."""
    found = load_targets()
    full = SHORT.get(name, name)
    if full not in found:
        hint = near_names(name, (*found, *SHORT)) or f"one of: {', '.join(sorted((*found, *SHORT)))}"
        raise Day0Error(f"--to {name}", "there is no such format", hint=hint)
    return found[full]

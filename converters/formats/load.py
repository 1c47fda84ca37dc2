"""Find the formats by their files."""

from __future__ import annotations

import functools
from importlib import import_module
from pkgutil import iter_modules

from day0.converters import formats
from day0.converters.weight import Format

__all__ = ["load_formats"]


@functools.cache
def load_formats() -> dict[str, Format]:
    """Return all formats by name; `plain` comes last, because it claims what no other did."""
    files = sorted(
        one.name for one in iter_modules(formats.__path__) if not one.name.startswith("_") and one.name != "load"
    )
    found = [import_module(f"{formats.__name__}.{file}").FORMAT for file in files]
    return {one.name: one for one in sorted(found, key=lambda one: (one.name == "plain", one.name))}

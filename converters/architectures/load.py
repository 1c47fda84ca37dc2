"""Find the architectures by their files, and the one of a checkpoint by its config."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from day0.converters import architectures
from day0.converters.architectures._architecture import Architecture
from day0.errors import Day0Error, near_names

__all__ = ["AUTO", "load_architectures", "pick_architecture"]

AUTO = "auto"


@functools.cache
def load_architectures() -> dict[str, Architecture]:
    """Return all architectures by name."""
    files = (one.name for one in iter_modules(architectures.__path__) if not one.name.startswith("_"))
    found = [import_module(f"{architectures.__name__}.{file}").ARCHITECTURE for file in sorted(files) if file != "load"]
    return {one.name: one for one in found}


def pick_architecture(name: str, config: Mapping[str, Any], *, keep_unknown: bool) -> Architecture:
    """Return the architecture by name, or by the model type of the config: the outer one counts before the text model's.

    Raises Day0Error for names and model types that are not known; with `keep_unknown` the common names are tried.
    """
    known = load_architectures()
    if name != AUTO:
        if name not in known:
            hint = near_names(name, tuple(known)) or f"one of: {', '.join(known)}"
            raise Day0Error(f"--architecture {name}", "there is no such architecture", hint=hint)
        return known[name]
    text = config.get("text_config")
    types = [config.get("model_type"), text.get("model_type") if isinstance(text, Mapping) else None]
    for kind in types:
        for one in known.values():
            if kind in one.model_types:
                return one
    if keep_unknown:
        return known["common"]
    said = ", ".join(str(kind)[:60] for kind in types if kind) or "nothing"
    raise Day0Error(
        "config.json",
        f"its model_type says {said}, and day0 has no map of such names",
        facts=(f"maps: {', '.join(f'{one.name} ({len(one.model_types)} types)' for one in known.values())}",),
        hint="--architecture NAME takes another map, --keep-unknown copies what no map names",
    )

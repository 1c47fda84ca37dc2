"""Find blocks by file name: every module of this folder that defines `BLOCK`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from day0.analyzers import blocks
from day0.analyzers.blocks._block import Block
from day0.errors import Day0Error

__all__ = ["load_blocks"]


@cache
def load_blocks() -> dict[str, Block]:
    """Return all blocks by name. Raises Day0Error for a file without one."""
    found: dict[str, Block] = {}
    for info in sorted(pkgutil.iter_modules(blocks.__path__), key=lambda one: one.name):
        if info.name.startswith("_") or info.name == "load":
            continue
        block = getattr(importlib.import_module(f"{blocks.__name__}.{info.name}"), "BLOCK", None)
        if not isinstance(block, Block):
            raise Day0Error(
                f"analyzers/blocks/{info.name}.py",
                "it does not define BLOCK, a Block",
                hint="see analyzers/blocks/rms_norm.py; begin the names of helper files with an underscore",
            )
        found[info.name] = block
    return found

"""Find comparisons by file name: every module of this folder that defines `COMPARISONS`."""

from __future__ import annotations

import importlib
import pkgutil

from day0.errors import Day0Error
from day0.reference_ops import agreement
from day0.reference_ops.agreement._comparison import Comparison

__all__ = ["load_comparisons"]


def load_comparisons() -> tuple[Comparison, ...]:
    """Return all comparisons by operator. Nothing of the other side is imported yet.

    Raises Day0Error for a file that defines none.
    """
    found: list[Comparison] = []
    for info in sorted(pkgutil.iter_modules(agreement.__path__), key=lambda one: one.name):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"day0.reference_ops.agreement.{info.name}")
        comparisons = getattr(module, "COMPARISONS", ())
        if not comparisons:
            raise Day0Error(
                f"reference_ops/agreement/{info.name}.py",
                "it defines no COMPARISONS",
                hint="see another file of that folder; begin the names of helper files with an underscore",
            )
        found.extend(comparisons)
    return tuple(sorted(found, key=lambda one: (one.operator, one.variant, one.against)))

"""Find operators by file name: every module of this folder that defines `OP`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path

from day0 import reference_ops
from day0.errors import Day0Error, near_names
from day0.reference_ops._spec import Operator
from day0.sources import sources

__all__ = ["HELPERS", "contract_of", "load_operator", "load_operators", "operator_file", "operator_sources"]

HELPERS = frozenset({"load", "signatures", "torch_ops"})
"""Modules of this folder that hold no operator."""


def load_operators() -> dict[str, Operator]:
    """Return all operators by their qualified name. Raises Day0Error if two files claim one name."""
    return {name: operator for name, (operator, _) in _found().items()}


def contract_of(op: str) -> Operator | None:
    """Return the operator that a qualified name means, with or without its overload; None for one that is not day0's."""
    found = _found().get(op.partition(".")[0])
    return None if found is None else found[0]


def load_operator(name: str) -> Operator:
    """Return one operator. Raises Day0Error for a name that no file defines."""
    operators = load_operators()
    if name not in operators:
        known = tuple(sorted(operators))
        raise Day0Error("operator", f"there is no '{name}'", hint=near_names(name, known) or "see `day0 ops list`")
    return operators[name]


def operator_file(name: str) -> Path:
    """Return the file that defines an operator."""
    return _found()[name][1]


def operator_sources(name: str) -> tuple[Path, ...]:
    """Return all files of this folder that an operator's meaning stands in, sorted by name.

    Its own, and what that imports from this folder, and so on: a changed helper is another reference.
    """
    return sources(operator_file(name), (reference_ops,))


@cache
def _found() -> dict[str, tuple[Operator, Path]]:
    found: dict[str, tuple[Operator, Path]] = {}
    for info in sorted(pkgutil.iter_modules(reference_ops.__path__), key=lambda one: one.name):
        if info.ispkg or info.name.startswith("_") or info.name in HELPERS:
            continue
        module = importlib.import_module(f"day0.reference_ops.{info.name}")
        path = Path(str(module.__file__))
        operator = getattr(module, "OP", None)
        if not isinstance(operator, Operator):
            raise Day0Error(
                f"reference_ops/{path.name}",
                "it does not define OP, an Operator",
                hint="see reference_ops/topk_tokens.py; begin the names of helper files with an underscore",
            )
        if operator.name in found:
            raise Day0Error(
                f"reference_ops/{path.name}",
                f"operator {operator.name} is defined twice",
                facts=(f"also in {found[operator.name][1].name}",),
                hint="keep one file for each operator",
            )
        found[operator.name] = (operator, path)
    return found

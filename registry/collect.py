"""Gather implementations from every source, and refuse two that claim one identity."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from day0.errors import Day0Error, near_names
from day0.hashing import hash_file, hash_json
from day0.implementation import Implementation
from day0.kernels.load import load_implementation_file, load_implementations
from day0.reference_ops.load import load_operators, operator_file, operator_sources
from day0.registry.namespaces import load_parents, search_path

__all__ = ["collect", "references", "without_conflicts"]

REFERENCE_RANK = 900
"""After every kernel and decomposition: it is right, but nobody made it fast."""


def collect(files: tuple[Path, ...] = ()) -> tuple[Implementation, ...]:
    """Return what ships with day0, the references, and what the user's files bring, sorted by identity.

    Raises Day0Error if two implementations have one identity and different content.
    """
    own = [one for path in files for one in load_implementation_file(path)]
    for one in own:
        _refuse_unknown(one)
    return without_conflicts((*load_implementations(), *references(), *own))


def _refuse_unknown(one: Implementation) -> None:
    """Refuse a user's implementation that could never be chosen: of no known operator, or in no known namespace."""
    known = set(torch._C._dispatch_get_all_op_names()) | set(load_operators())
    names = known | {name.partition(".")[0] for name in known}
    if one.operator not in names:
        hint = near_names(one.operator, tuple(sorted(names))) or "write it like aten::silu or aten::add.Tensor"
        raise Day0Error(one.origin, f"there is no operator '{one.operator}'", hint=hint)
    search_path(one.namespace, load_parents())


def references() -> tuple[Implementation, ...]:
    """Return every operator's reference as an implementation that runs on any device with its leaves."""
    return tuple(
        Implementation(
            operator=operator.name,
            contract=operator.version,
            id="reference",
            version=f"{operator.version}.0",
            kind="reference",
            run=operator.reference,
            why="the meaning of the operator in plain PyTorch, on the device",
            rank=REFERENCE_RANK,
            origin=f"reference_ops/{operator_file(operator.name).name}",
            source_hash=hash_json([[path.name, hash_file(path)] for path in operator_sources(operator.name)]),
        )
        for operator in load_operators().values()
    )


def without_conflicts(implementations: Iterable[Implementation]) -> tuple[Implementation, ...]:
    """Return the implementations sorted by identity; the same one twice is kept once."""
    kept: dict[str, Implementation] = {}
    for one in implementations:
        other = kept.setdefault(str(one.identity), one)
        if other.source_hash != one.source_hash:
            raise Day0Error(
                f"registry: {one.identity}",
                "two implementations claim this identity with different content",
                facts=tuple(sorted(f"{it.origin}  {it.source_hash[:19]}" for it in (one, other))),
                hint="give one of them another id, version or namespace",
            )
    return tuple(kept[name] for name in sorted(kept))

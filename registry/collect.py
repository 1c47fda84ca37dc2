"""Gather implementations from every source, and refuse two that claim one identity."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from day0.hashing import hash_file, hash_json
from day0.implementation import Implementation
from day0.kernels.load import load_implementation_file, load_implementations
from day0.reference_ops.load import load_operators, operator_file, operator_sources
from day0.registry.conflicts import find_same_identity, refuse
from day0.registry.contract import refuse_drift, refuse_unknown_operator
from day0.registry.entry_points import load_entry_points
from day0.registry.namespaces import load_parents, search_path

__all__ = ["collect", "references", "without_conflicts"]

REFERENCE_RANK = 900
"""After every kernel and decomposition: it is right, but nobody made it fast."""


def collect(files: tuple[Path, ...] = (), *, without: tuple[str, ...] = ()) -> tuple[Implementation, ...]:
    """Return what ships with day0, the references, what installed packages and the user's files bring, by identity.

    `without` names installed packages to leave out.
    Raises Day0Error if two implementations have one identity and different content, if one could never be chosen, if
    one does not fit the contract that it states, and if a package or a file does not load.
    """
    points = load_entry_points(without=without)
    brought = [one for point in points for one in point.implementations]
    own = [one for path in files for one in load_implementation_file(path)]
    parents = load_parents(files, brought=points)
    for one in (*brought, *own):
        refuse_unknown_operator(one)
        refuse_drift(one)
        search_path(one.namespace, parents)
    return without_conflicts((*load_implementations(), *references(), *brought, *own))


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
    """Return the implementations sorted by identity; the same one twice is kept once, whichever came first.

    Raises Day0Error, naming both origins, where one identity stands for two contents.
    """
    known = sorted(implementations, key=lambda one: (str(one.identity), not one.distribution, one.origin))
    refuse(find_same_identity(known))
    kept: dict[str, Implementation] = {}
    for one in known:
        kept.setdefault(str(one.identity), one)
    return tuple(kept.values())

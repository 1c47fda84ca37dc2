"""What no trace has reached yet, decided while locking: calls that two would take, and calls that none would."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from day0.implementation import Implementation
from day0.records import Signature
from day0.registry import conflicts
from day0.registry.holes import find_holes
from day0.registry.overlap import call_text, find_overlaps

__all__ = ["ambiguities", "holes"]


def ambiguities(
    operators: Collection[str], known: Iterable[Implementation], namespaces: Collection[str], *, strict: bool
) -> tuple[str, ...]:
    """Return what two implementations of equal rank would both take, or may take, of the operators of a lock.

    Raises Day0Error for the first of them where `strict` is asked for.
    """
    names = {op.partition(".")[0] for op in operators}
    mine = [one for one in known if one.operator.partition(".")[0] in names]
    found = [one.conflict() for one in find_overlaps(mine, namespaces=namespaces)]
    if strict:
        conflicts.refuse(found)
    return tuple(
        f"{one.where}: {one.what}: {' and '.join(owner.what for owner in one.owners)}"
        + (f"; for example {one.witness}" if one.witness else "")
        for one in found
    )


def holes(
    calls: Mapping[str, Sequence[Signature]], candidates: Sequence[Implementation], device: str
) -> tuple[str, ...]:
    """Return the calls next to traced ones that no kernel takes, by operator; a reference would, if it can."""
    return tuple(
        f"{operator}: {call_text(hole.signature)} ({hole.change})"
        for operator, signatures in sorted(calls.items())
        for hole in find_holes(signatures, [one for one in candidates if _is_of(one, operator)], device)
        if hole.change
    )


def _is_of(one: Implementation, operator: str) -> bool:
    return one.operator in (operator, operator.partition(".")[0])

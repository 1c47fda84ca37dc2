"""Which implementations of equal rank would take the same call? Decided from their constraints, with a witness.

A tie between two that both take a traced call is an error anyway. This also finds the ties that no trace has reached yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from day0.implementation import Implementation
from day0.records import Identity, ScalarValue, Signature, TensorValue, Value
from day0.registry.conflicts import Conflict, owner_of
from day0.registry.contract import contract_version, refuse_overload
from day0.registry.resolve import refusal
from day0.registry.schemas import overloads_of, parameters_of
from day0.registry.solve import MAX_TRIES, UndecidableError, combinations, satisfy

__all__ = ["Overlap", "call_text", "find_overlaps"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """Two implementations at one place of the order that both take some call, or of which that cannot be known."""

    status: Literal["overlap", "undecidable"]
    first: Implementation
    second: Implementation
    witness: str
    """A call that both take, for people; with `undecidable` one that their constraints leave open, or nothing."""
    signature: Signature | None
    device: str
    """Torch device type on which they meet."""
    reason: str
    """What cannot be decided and why; empty for an overlap."""

    @property
    def identities(self) -> tuple[Identity, Identity]:
        """Both, in the order of their names."""
        return self.first.identity, self.second.identity

    def conflict(self) -> Conflict:
        """Return it as a conflict that names both owners."""
        what = f"two implementations have rank {self.first.rank} in namespace {self.first.namespace}, and "
        what += (
            "both take one call" if self.status == "overlap" else f"whether both take one call is open: {self.reason}"
        )
        return Conflict(
            kind="overlap",
            where=f"registry: {self.first.operator}",
            what=what,
            owners=(owner_of(self.first), owner_of(self.second)),
            witness=self.witness,
            hint="give one of them a lower rank, or constraints that tell them apart",
        )


def find_overlaps(
    implementations: Iterable[Implementation], *, namespaces: Collection[str] | None = None
) -> tuple[Overlap, ...]:
    """Return every pair of equal rank in one namespace that shares a call, sorted by identity, each with a witness.

    Versions of one id do not count: the newer one is preferred. Nor do those of a contract that is not current, which
    are never chosen. `namespaces` keeps what is looked at to a search path. An opaque predicate makes a pair
    undecidable, unless the constraints are disjoint already, or the witness is a call that both take.
    """
    places: dict[tuple[str, str, int], list[Implementation]] = {}
    for one in sorted(implementations, key=lambda one: (str(one.identity), one.source_hash)):
        wanted = namespaces is None or one.namespace in namespaces
        if wanted and one.contract == contract_version(one.operator):
            places.setdefault((one.operator.partition(".")[0], one.namespace, one.rank), []).append(one)
    pairs = (pair for members in places.values() for pair in itertools.combinations(members, 2))
    found = (_overlap(first, second) for first, second in pairs)
    return tuple(one for one in found if one is not None)


def _overlap(first: Implementation, second: Implementation) -> Overlap | None:
    if (first.operator, first.id) == (second.operator, second.id):
        return None
    device = _common_device(first.devices, second.devices)
    if not device:
        return None
    doubt = None
    mine = overloads_of(second.operator)
    for op in (op for op in overloads_of(first.operator) if op in mine):
        if refuse_overload(first, op) or refuse_overload(second, op):
            continue
        found = _on(op, first, second, device)
        if found is not None and found.status == "overlap":
            return found
        doubt = doubt or found
    return doubt


def _common_device(first: tuple[str, ...], second: tuple[str, ...]) -> str:
    if "*" in first and "*" in second:
        return "cpu"
    both = set(second if "*" in first else first if "*" in second else set(first) & set(second))
    return min(both, default="")


def _on(op: str, first: Implementation, second: Implementation, device: str) -> Overlap | None:
    """Look for a call of one overload that both take."""
    doubt = ""
    left_open: Signature | None = None
    try:
        pairs = list(itertools.product(combinations(first.constraints), combinations(second.constraints)))
    except UndecidableError as error:
        return _made("undecidable", first, second, None, device, str(error))
    for mine, other in pairs[:MAX_TRIES]:
        try:
            signature = satisfy((*mine, *other), op)
        except UndecidableError as error:
            doubt = str(error)
            continue
        if signature is None:
            continue
        doubt = next((reason for one in (first, second) if (reason := _open(one, signature, device))), "")
        if not doubt:
            return _made("overlap", first, second, signature, device, "")
        left_open = signature
    if len(pairs) > MAX_TRIES:
        doubt = f"there are {len(pairs)} combinations of constraints"
    return _made("undecidable", first, second, left_open, device, doubt) if doubt else None


def _open(one: Implementation, signature: Signature, device: str) -> str:
    """Say why an implementation may still refuse what its constraints allow."""
    if one.kind == "reference":
        return f"{one.identity} is a reference, which takes what its leaves on the device take"
    reason = refusal(one, signature, device)
    return f"{one.identity} can refuse what its constraints allow; of the witness it says: {reason}" if reason else ""


def _made(
    status: Literal["overlap", "undecidable"],
    first: Implementation,
    second: Implementation,
    signature: Signature | None,
    device: str,
    reason: str,
) -> Overlap:
    return Overlap(
        status=status,
        first=first,
        second=second,
        witness=f"{call_text(signature)} on {device}" if signature is not None else "",
        signature=signature,
        device=device,
        reason=reason,
    )


def call_text(signature: Signature) -> str:
    """Return a call for people: `aten::topk(self=float32[1, 16], k=1)`; defaults are left out."""
    parameters = {one.name: one for one in parameters_of(signature.op)}
    given = {**dict(zip(parameters, signature.args, strict=False)), **signature.kwargs}
    default = {name: repr(one.default) for name, one in parameters.items() if one.has_default}
    shown = ((name, _value_text(value)) for name, value in given.items())
    return f"{signature.op}({', '.join(f'{name}={text}' for name, text in shown if text != default.get(name))})"


def _value_text(value: Value) -> str:
    if isinstance(value, TensorValue):
        dense = tuple(itertools.accumulate((1, *reversed(value.shape[1:])), lambda step, size: step * max(size, 1)))
        strided = "" if value.stride == dense[::-1][: len(value.shape)] else f" strides {list(value.stride)}"
        return f"{value.dtype}{list(value.shape)}{strided}"
    if isinstance(value, ScalarValue):
        return repr(value.value) if value.type == "str" else value.value
    return f"[{', '.join(map(_value_text, value.items))}]"

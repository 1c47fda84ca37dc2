"""What a call that has to be refused says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from day0.analyzers.cases.plugins import find_all
from day0.records import Signature
from day0.reference_ops._spec import Operator

__all__ = ["Refusal", "load_refusals", "untouched"]


def untouched(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Leave the values as they are: the signature itself is what has to be refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """One reason to refuse a call."""

    name: str
    why: str
    """What goes wrong where the call is not refused."""
    derive: Callable[[Signature, Operator | None], Iterator[Signature]]
    """Yields the calls to refuse, at most one of each kind."""
    spoil: Callable[[Signature, tuple[Any, ...], dict[str, Any]], None] = untouched
    """Makes the values of a valid call invalid, in place."""
    leaves_on_cpu: Callable[[Signature], int | None] = lambda signature: None
    """Which of the tensors stays on the CPU while the others go to the device."""
    expected: type[Exception] | None = None
    """What has to be raised, where the CPU cannot be asked."""
    lacks_dtype: bool = False
    """Whether "not implemented for" a dtype is a refusal too: it is the very dtype that has to be refused."""
    ends_cuda: bool = False
    """True where CUDA reports it by an assertion on the card, after which the process can do nothing more there."""


@cache
def load_refusals() -> dict[str, Refusal]:
    """Return all refusals by name."""
    from day0.analyzers.cases import refusals

    return find_all(refusals, "REFUSAL", Refusal)

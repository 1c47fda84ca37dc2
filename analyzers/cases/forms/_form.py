"""What a derived form of a call says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.plugins import find_all
from day0.records import Signature
from day0.reference_ops._spec import Operator

__all__ = ["Derive", "Form", "load_forms"]

Derive = Callable[[Signature, Operator | None], Iterator[tuple[str, Signature]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One way of deriving calls from a traced one. What it derives may be no valid call: valid_call() says so."""

    name: str
    why: str
    """Which mistakes show in such calls."""
    derive: Derive
    """Yields a suffix for the name, empty where there is one call only, and the derived signature."""
    surroundings: bool = False
    """True if the memory around the arguments is filled with NaN, or the largest integer."""
    regimes: tuple[str, ...] = ("ordinary",)
    """Under which values the derived calls are made."""
    inputs: Callable[[Case, Operator | None], CaseInputs | Unfillable] | None = None
    """Makes the arguments itself, where they come from elsewhere than a regime."""
    thorough: bool = False
    """True for those that only `--thorough` plans."""
    once: bool = False
    """True where the calls follow from the operator alone: they are made for its first traced signature only."""
    every: bool = False
    """True if every traced signature is derived from, and not one of each kind."""


@cache
def load_forms() -> dict[str, Form]:
    """Return all forms by name."""
    from day0.analyzers.cases import forms

    return find_all(forms, "FORM", Form)

"""A case: one signature under one value regime and one seed; and its arguments."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from day0.records import Signature

__all__ = ["Case", "CaseInputs", "Unfillable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One signature under one value regime and one seed: the same bits whenever it is made."""

    signature_id: str
    """Of the traced call, whatever was derived from it."""
    signature: Signature
    regime: str
    seed: int
    form: str = "traced"
    """How the signature was derived from the traced one: `traced`, or by which file of forms/ and how."""
    way: str = "plain"
    """How often, in which parts and where it is called: a file of ways/."""
    refusal: str = ""
    """Why the call has to be refused: a file of refusals/. Empty for calls that have a result."""
    captured: str = ""
    """Regime `captured`: the file with the values, and its SHA-256 after a `#`."""

    @property
    def key(self) -> str:
        """Name of the case, for files and for resuming."""
        parts = [self.signature_id, self.regime, str(self.seed)]
        parts += [self.form] if self.form != "traced" else []
        parts += [f"way.{self.way}"] if self.way != "plain" else []
        return "-".join([*parts, *([f"refused.{self.refusal}"] if self.refusal else [])])

    def generator(self) -> torch.Generator:
        """Return a generator that depends on the case alone, not on the order of cases."""
        return torch.Generator().manual_seed(self.number)

    @property
    def number(self) -> int:
        """What random numbers of the case begin with: it depends on the key alone."""
        return int.from_bytes(hashlib.sha256(self.key.encode()).digest()[:7], "big")


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseInputs:
    """Arguments on the CPU in the traced dtypes."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unfillable:
    """Why no valid values can be made."""

    reason: str

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
    signature: Signature
    regime: str
    seed: int

    @property
    def key(self) -> str:
        """Name of the case, for files and for resuming."""
        return f"{self.signature_id}-{self.regime}-{self.seed}"

    def generator(self) -> torch.Generator:
        """Return a generator that depends on the case alone, not on the order of cases."""
        digest = hashlib.sha256(self.key.encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseInputs:
    """Arguments on the CPU in the traced dtypes."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unfillable:
    """Why no valid values can be made."""

    reason: str

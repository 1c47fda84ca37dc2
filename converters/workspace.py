"""Where a mixture of experts gets its weights from while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

__all__ = ["DecodeEveryTime", "ExpertWorkspace", "PackedExperts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedExperts:
    """The stacked weights [E, out, in] of all experts of a layer as they lie in memory: four-bit codes and scales."""

    name: str
    """Where they stand in the model, for a workspace that keeps what it has converted."""
    codes: torch.Tensor
    """uint8 [E, out, in / 2]."""
    scales: torch.Tensor
    """uint8 [E, out, in / 32]."""


class ExpertWorkspace(Protocol):
    """Converts packed experts at inference, when they are needed."""

    def expert_weights(self, packed: PackedExperts, dtype: torch.dtype) -> torch.Tensor:
        """Return the weights [E, out, in] in `dtype`."""


class DecodeEveryTime:
    """Keeps nothing: every call decodes all experts."""

    def __init__(self, calls: Any) -> None:
        """Use the operator `mxfp4_decode` of `calls`, for example of `torch.ops.day0`."""
        self.calls = calls

    def expert_weights(self, packed: PackedExperts, dtype: torch.dtype) -> torch.Tensor:
        """Return the weights [E, out, in] in `dtype`."""
        weight: torch.Tensor = self.calls.mxfp4_decode(packed.codes, packed.scales, dtype)
        return weight

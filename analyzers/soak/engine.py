"""What a soak asks of whoever runs sequences: prefill, decode, let some go, and say what is held.

Shape suffixes: B sequences, S tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from day0.analyzers.soak.batches import BatchEngine
from day0.analyzers.soak.held import Held
from day0.analyzers.soak.pool import PoolEngine
from day0.models.toy.model import ToyModel

__all__ = ["Engine", "engine_for"]


class Engine(Protocol):
    """Runs batches of sequences of one length; a batch is what `prefill` returned."""

    title: str
    joins: bool
    """Whether batches of the same length can become one."""

    def prefill(self, ids_BS: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Begin sequences. Returns the logits [B, V] of their last tokens, on the CPU, and the batch."""

    def decode(self, tokens_B1: torch.Tensor, batch: Any) -> tuple[torch.Tensor, Any]:
        """Continue them by one token each. A batch that was given in is not used again."""

    def keep(self, batch: Any, rows: list[int]) -> Any:
        """Let all rows but these go; None where the engine cannot, and then the batch stays whole."""

    def join(self, batches: list[Any]) -> Any:
        """Make one batch of several of the same length, rows in their order."""

    def free(self, batch: Any) -> None:
        """Let all rows go."""

    def held(self) -> Held:
        """Return what is held now."""


def engine_for(model: nn.Module, device: torch.device) -> Engine:
    """Return the engine for a model: the toy's own pages, shared by all sequences, or a cache for each batch."""
    return PoolEngine(model, device) if isinstance(model, ToyModel) else BatchEngine(model, device)

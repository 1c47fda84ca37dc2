"""Sequences of a model of transformers: each batch has a cache of its own, and rows leave it when they are done.

There are no pages and batches do not become one: transformers' own caches hold one rectangle of tokens.

Shape suffixes: B sequences, S tokens, V vocabulary.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from day0.analyzers.soak.held import Held
from day0.analyzers.soak.rows import select_rows
from day0.models.driver import step, style_of

__all__ = ["Batch", "BatchEngine"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Sequences that began together, with their cache."""

    rows: int
    cache: Any


class BatchEngine:
    """One cache for each batch."""

    title = "a cache of its own for each batch"
    joins = False

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model, self.device, self.style = model, device, style_of(model)
        self._alive: weakref.WeakSet[Batch] = weakref.WeakSet()

    def prefill(self, ids_BS: torch.Tensor) -> tuple[torch.Tensor, Batch]:
        """Begin sequences with a new cache."""
        return self._call(ids_BS, None)

    def decode(self, tokens_B1: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, Batch]:
        """Continue them by one token each."""
        return self._call(tokens_B1, batch.cache)

    def _call(self, ids_BS: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Batch]:
        output = step(self.model, ids_BS.to(self.device), cache, style=self.style)
        made = self._made(Batch(rows=ids_BS.shape[0], cache=output.cache))
        return output.logits_BSV[:, -1].float().cpu(), made

    def keep(self, batch: Batch, rows: list[int]) -> Batch | None:
        """Let the cache forget the other rows; None for a cache that does not know how, and then the batch stays whole."""
        if not select_rows(batch.cache, torch.tensor(rows).to(self.device)):
            return None
        return self._made(Batch(rows=len(rows), cache=batch.cache))

    def join(self, batches: list[Batch]) -> Batch:
        """Raise NotImplementedError: two rectangles of tokens are none."""
        raise NotImplementedError("batches of transformers' caches are not joined")

    def free(self, batch: Batch) -> None:
        """Do nothing: the memory goes with the last reference to the batch, which `held` counts."""

    def held(self) -> Held:
        """Return what is held now."""
        alive = list(self._alive)
        return Held(sequences=sum(one.rows for one in alive), caches=len(alive))

    def _made(self, batch: Batch) -> Batch:
        self._alive.add(batch)
        return batch

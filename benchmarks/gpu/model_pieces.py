"""A step of decode in pieces: CUDA graphs that end where a layer asks for experts, and go on behind them.

Which experts are missing is decided by the host, so that one graph cannot hold the whole step. Between two pieces the
host reads what was chosen, has missing experts converted, and writes into the next piece's buffer where they lie.

Shape suffixes: B batch, V vocabulary, N tokens, K choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from model_toy import Context, step

from day0.converters.online.cached import CachedExperts
from day0.converters.online.expert_cache import ExpertCache
from day0.converters.workspace import ExpertRound, PackedExperts, renumbered
from day0.models.toy.model import ToyModel
from day0.models.toy.online import expert_layers

__all__ = ["Pieces"]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a layer asked for at the end of a piece, and where the next piece reads the answer."""

    cached: CachedExperts
    packed: Sequence[PackedExperts]
    chosen_NK: torch.Tensor
    slot_NK: torch.Tensor


class Pieces:
    """The graphs of one step, and what happens between them. The cache's slots hold bfloat16, and suffice for a step."""

    def __init__(self, model: ToyModel, context: Context, cache: ExpertCache) -> None:
        self._context, self._cache = context, cache
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._asked: list[Asked] = []
        self._pool = torch.cuda.graph_pool_handle()
        batch, choices = len(context.ids_B1), model.config.experts_per_token
        layers = expert_layers(model)
        for number, layer in enumerate(layers):
            # Made before the graphs: what is made while one is captured is its own.
            slot_NK = torch.zeros(batch, choices, dtype=torch.int64, device=context.ids_B1.device)
            layer.workspace = _Pause(self, CachedExperts(cache, number), slot_NK)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            self._begin()
            self._logits_BV = step(model, context)[:, -1]
            self._graphs[-1].capture_end()
        torch.cuda.synchronize()

    def run(self, ids_B: torch.Tensor) -> torch.Tensor:
        """Return the logits of one token of each request, in the same buffer every time.

        Raises RuntimeError where a step needs more experts than there are slots.
        """
        self._context.ids_B1.copy_(ids_B[:, None])
        self._graphs[0].replay()
        for number, one in enumerate(self._asked):
            experts = one.packed[0].codes.shape[0]
            needed = one.chosen_NK.cpu().unique().tolist()
            rounds = 0
            for places in self._cache.rounds(one.cached.layer, needed, one.cached.source(one.packed)):
                one.slot_NK.copy_(renumbered(one.chosen_NK, dict(places), experts))
                self._graphs[number + 1].replay()
                rounds += 1
            if rounds != 1:
                raise RuntimeError(f"a layer's experts came in {rounds} rounds, and a piece computes one")
        return self._logits_BV

    def pause(self, asked: Asked) -> None:
        """End a piece, and begin the next."""
        self._asked.append(asked)
        self._graphs[-1].capture_end()
        self._begin()

    def _begin(self) -> None:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool)
        self._graphs.append(graph)


class _Pause:
    """A layer's workspace while the pieces are captured."""

    def __init__(self, pieces: Pieces, cached: CachedExperts, slot_NK: torch.Tensor) -> None:
        self._pieces, self._cached, self._slot_NK = pieces, cached, slot_NK

    def rounds(
        self, packed: Sequence[PackedExperts], chosen_NK: torch.Tensor, dtype: torch.dtype
    ) -> Iterator[ExpertRound]:
        """Give the slots, and the buffer with their numbers."""
        asked = Asked(cached=self._cached, packed=packed, chosen_NK=chosen_NK, slot_NK=self._slot_NK)
        self._pieces.pause(asked)
        workspace = self._cached.cache.workspace
        yield ExpertRound(gate_up=workspace.values(0), down=workspace.values(1), chosen_NK=self._slot_NK)

"""An expert cache as the workspace of a model's layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from day0.converters.online.expert_cache import ExpertCache
from day0.converters.online.fp8_workspace import Packed
from day0.converters.workspace import ExpertRound, PackedExperts, renumbered

__all__ = ["CachedExperts"]


class CachedExperts:
    """The part of a cache that one layer asks. The cache's workspace has two matrices: gate above up, and down."""

    def __init__(self, cache: ExpertCache, layer: int) -> None:
        self.cache, self.layer = cache, layer

    def rounds(
        self, packed: Sequence[PackedExperts], chosen_NK: torch.Tensor, dtype: torch.dtype
    ) -> Iterator[ExpertRound]:
        """Give what lies in slots, widened to `dtype` for operators that take no FP8."""
        gate, up, down = packed
        experts = gate.codes.shape[0]

        def source(expert: int) -> tuple[Packed, Packed]:
            codes = torch.cat((gate.codes[expert], up.codes[expert]))
            scales = torch.cat((gate.scales[expert], up.scales[expert]))
            return Packed(codes=codes, scales=scales), Packed(codes=down.codes[expert], scales=down.scales[expert])

        needed = [one for one in chosen_NK.cpu().unique().tolist() if 0 <= one < experts]
        workspace = self.cache.workspace
        for places in self.cache.rounds(self.layer, needed, source):
            slots = list(places.values())
            yield ExpertRound(
                gate_up=workspace.decoded(0, slots, dtype),
                down=workspace.decoded(1, slots, dtype),
                chosen_NK=renumbered(chosen_NK, {expert: place for place, expert in enumerate(places)}, experts),
            )

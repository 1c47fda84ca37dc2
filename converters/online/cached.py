"""An expert cache as the workspace of a model's layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from day0.converters.online.expert_cache import ExpertCache, Source
from day0.converters.online.fp8_workspace import Packed
from day0.converters.workspace import ExpertRound, PackedExperts, renumbered

__all__ = ["CachedExperts"]


class CachedExperts:
    """The part of a cache that one layer asks. The cache's workspace has two matrices: gate above up, and down."""

    def __init__(self, cache: ExpertCache, layer: int) -> None:
        self.cache, self.layer = cache, layer
        self._settled: dict[tuple[int, int], tuple[str, ...]] = {}
        """What `Fp8Workspace.settled` said, by expert and version of the weights: asking waits for the device."""
        self._exact: dict[int, frozenset[int]] = {}
        """Experts that their scales alone leave exact, by version of the weights: asked once for all of them."""

    def rounds(
        self, packed: Sequence[PackedExperts], chosen_NK: torch.Tensor, dtype: torch.dtype
    ) -> Iterator[ExpertRound]:
        """Give what lies in slots: the slots themselves where they hold `dtype`, else widened to it."""
        experts = packed[0].codes.shape[0]
        source = self.source(packed)
        needed = [one for one in chosen_NK.cpu().unique().tolist() if 0 <= one < experts]
        workspace = self.cache.workspace
        there = workspace.layout == "bf16" and dtype == torch.bfloat16
        for places in self.cache.rounds(self.layer, needed, source):
            slots = list(places.values())
            numbers = places if there else {expert: place for place, expert in enumerate(places)}
            gate_up, down_ = (
                workspace.values(matrix) if there else workspace.decoded(matrix, slots, dtype) for matrix in range(2)
            )
            chosen = renumbered(chosen_NK, dict(numbers), experts)
            yield ExpertRound(gate_up=gate_up, down=down_, chosen_NK=chosen)

    def source(self, packed: Sequence[PackedExperts]) -> Source:
        """Return what gives the two matrices of an expert, from `packed` gate, up and down."""
        gate, up, down = packed
        version = _version(packed)

        def of(expert: int) -> tuple[Packed, ...]:
            codes = _above(gate.codes[expert], up.codes[expert])
            scales = _above(gate.scales[expert], up.scales[expert])
            parts = Packed(codes=codes, scales=scales), Packed(codes=down.codes[expert], scales=down.scales[expert])
            if expert in self._exact_experts(version, packed):
                return tuple(replace(one, settled=self.cache.workspace.layout) for one in parts)
            return self._asked_once((expert, version), parts)

        return of

    def _exact_experts(self, version: int, packed: Sequence[PackedExperts]) -> frozenset[int]:
        known = self._exact.get(version)
        if known is None:
            known = self._found_exact(packed) if version >= 0 else frozenset()
            self._exact = {version: known}
        return known

    def _found_exact(self, packed: Sequence[PackedExperts]) -> frozenset[int]:
        asked = [self.cache.workspace.exact_by_scales(one.scales) for one in packed]
        said = [one for one in asked if one is not None]
        if len(said) < len(asked):
            return frozenset()
        return frozenset(torch.stack(said).all(dim=0).nonzero().flatten().tolist())

    def _asked_once(self, key: tuple[int, int], parts: tuple[Packed, ...]) -> tuple[Packed, ...]:
        known = self._settled.get(key)
        if known is not None:
            return tuple(replace(one, settled=said) for one, said in zip(parts, known, strict=True))
        asked = tuple(self.cache.workspace.settled(matrix, one) for matrix, one in enumerate(parts))
        # Nobody counts changes of tensors that were made in inference mode: they are asked every time.
        if key[1] >= 0:
            self._settled[key] = tuple(one.settled for one in asked)
        return asked


def _above(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the rows of both: without a copy where they lie one behind the other in one piece of memory."""
    rows = one.shape[0]
    behind = (
        one.data_ptr() + one.nbytes == other.data_ptr()
        and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    )
    if behind and one.is_contiguous() and other.is_contiguous():
        return one.as_strided((rows + other.shape[0], *one.shape[1:]), one.stride())
    return torch.cat((one, other))


def _version(packed: Sequence[PackedExperts]) -> int:
    """Return a number that grows when weights are changed in place; -1 where that is not known."""
    tensors = [tensor for one in packed for tensor in (one.codes, one.scales)]
    return -1 if any(one.is_inference() for one in tensors) else sum(one._version for one in tensors)

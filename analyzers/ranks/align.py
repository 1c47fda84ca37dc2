"""The part of a whole result that one rank holds: modules between a cut by columns and one by rows hand on shards."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["part_of_rank", "parts_of_rank"]


def parts_of_rank(
    got: Sequence[torch.Tensor], whole: Sequence[torch.Tensor], rank: int, size: int, *, packed: bool
) -> list[torch.Tensor] | None:
    """Return what of each whole result the rank's own stands for; None where a shape is no such part.

    `packed`: two halves lie one after the other and are cut each for itself.
    """
    if len(got) != len(whole):
        return None
    parts = [part_of_rank(mine, one, rank, size, packed=packed) for mine, one in zip(got, whole, strict=True)]
    return [part for part in parts if part is not None] if all(part is not None for part in parts) else None


def part_of_rank(
    got: torch.Tensor, whole: torch.Tensor, rank: int, size: int, *, packed: bool = False
) -> torch.Tensor | None:
    """Return the part of `whole` with the shape of `got`, which is smaller by the number of ranks in one dimension."""
    if got.shape == whole.shape:
        return whole
    if got.dim() != whole.dim():
        return None
    cut = [dim for dim in range(got.dim()) if got.shape[dim] != whole.shape[dim]]
    if len(cut) != 1 or got.shape[cut[0]] * size != whole.shape[cut[0]]:
        return None
    if packed:
        halves = whole.chunk(2, dim=cut[0])
        return torch.cat([half.chunk(size, dim=cut[0])[rank] for half in halves], dim=cut[0])
    return whole.chunk(size, dim=cut[0])[rank]

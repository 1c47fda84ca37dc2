"""aten::topk by a stable sort."""

from __future__ import annotations

import torch

from day0.implementation import Implementation

__all__ = ["IMPLEMENTATIONS"]


def topk(
    self: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort everything and keep the first k: more work than a selection, but deterministic, ties by rising index."""
    values, indices = torch.sort(self, stable=True, dim=dim, descending=largest)
    return values.narrow(dim, 0, k).contiguous(), indices.narrow(dim, 0, k).contiguous()


IMPLEMENTATIONS = (
    Implementation(
        operator="aten::topk",
        contract=1,
        id="stable_sort",
        version="1.0",
        kind="decomposition",
        run=topk,
        why="stable sort and cut: deterministic, ties by rising index",
    ),
)

"""What scatter and its in-place form share: valid indices and samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._spec import Sample
from day0.reference_ops._write import write

__all__ = ["fill", "samples"]


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Distinct places along the dimension: who wins a place that is named twice is not specified."""
    self, dim, index = args[0], args[1], args[2]
    size = self.shape[dim]
    order = torch.rand([size if d == dim % self.dim() else n for d, n in enumerate(index.shape)], generator=generator)
    write(index, order.argsort(dim=dim).narrow(dim, 0, index.shape[dim]))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """A value, a source tensor, no index at all, and the mask of DeepSeek-V3.2: 2048 chosen of 4096 tokens."""
    index = torch.tensor([[2, 0], [1, 2]])
    yield Sample(kind="small", args=(torch.zeros(2, 3), 1, index, 1.0), kwargs={})
    yield Sample(kind="odd", args=(torch.zeros(2, 3), 1, index, torch.randn(2, 2, generator=generator)), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(2, 3), 1, torch.zeros(2, 0, dtype=torch.int64), 1.0), kwargs={})
    closed = torch.full((1, 2, 4096), float("-inf"))
    chosen = torch.rand(1, 2, 4096, generator=generator).topk(2048).indices
    yield Sample(kind="traced", args=(closed, -1, chosen, 0.0), kwargs={})

"""Values along one dimension by index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._spec import Operator, Sample, Tolerance
from day0.reference_ops._write import write

__all__ = ["OP", "reference"]


def reference(self: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> torch.Tensor:
    """Return the values that the index names."""
    return torch.gather(self, dim, index)


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Positions along the dimension."""
    index = args[2]
    write(index, torch.randint(0, max(args[0].shape[args[1]], 1), index.shape, generator=generator))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, odd, no index at all, and the router of DeepSeek-V3.2: 8 of 256 experts."""
    table = torch.randn(4, 5, generator=generator)
    yield Sample(kind="small", args=(table, 1, torch.randint(0, 5, (4, 2), generator=generator)), kwargs={})
    yield Sample(kind="odd", args=(table, 0, torch.randint(0, 4, (1, 5), generator=generator)), kwargs={})
    yield Sample(kind="corner", args=(table, 1, torch.zeros(4, 0, dtype=torch.int64)), kwargs={})
    scores = torch.rand(4, 256, generator=generator)
    yield Sample(kind="traced", args=(scores, 1, scores.topk(8).indices), kwargs={})


OP = Operator(
    name="aten::gather",
    version=1,
    summary="values along a dimension by index",
    schema="",
    mathematics="out[i][j] = self[i][index[i][j]] along dim",
    source="torch documentation of gather",
    reference=reference,
    fill=fill,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(ratio=1.0, ceiling=0.0, ulps=0.0, reason="values are copied, not computed"),
    verified_against="torch's own CPU kernel",
)

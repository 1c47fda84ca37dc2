"""Slices along one dimension by their number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._spec import Operator, Sample, Tolerance
from day0.reference_ops._write import write

__all__ = ["OP", "reference"]


def reference(self: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """Return the slices that the index names."""
    return torch.index_select(self, dim, index)


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Numbers of slices."""
    index = args[2]
    write(index, torch.randint(0, max(args[0].shape[args[1]], 1), index.shape, generator=generator))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, odd, no index at all, and DeepSeek-V3.2's tokens once for each of 8 experts."""
    table = torch.randn(4, 5, generator=generator)
    yield Sample(kind="small", args=(table, 0, torch.tensor([3, 0])), kwargs={})
    yield Sample(kind="odd", args=(table, 1, torch.tensor([4, 4, 1])), kwargs={})
    yield Sample(kind="corner", args=(table, 0, torch.zeros(0, dtype=torch.int64)), kwargs={})
    tokens = torch.randn(4, 7168, generator=generator).to(torch.bfloat16)
    yield Sample(kind="traced", args=(tokens, 0, torch.arange(32) // 8), kwargs={})


OP = Operator(
    name="aten::index_select",
    version=1,
    summary="slices along a dimension by number",
    schema="",
    mathematics="out[.., i, ..] = self[.., index[i], ..]",
    source="torch documentation of index_select",
    reference=reference,
    fill=fill,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(ratio=1.0, ceiling=0.0, ulps=0.0, reason="values are copied, not computed"),
    verified_against="torch's own CPU kernel",
)

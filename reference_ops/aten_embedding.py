"""Rows of a table by their number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._spec import Operator, Sample, Tolerance
from day0.reference_ops._write import write

__all__ = ["OP", "reference"]


def reference(weight: torch.Tensor, indices: torch.Tensor, *rest: Any, **kwargs: Any) -> torch.Tensor:
    """Return the rows that the indices name."""
    # Of indices in another order of memory, `weight[indices]` would keep that order.
    return weight[indices].contiguous()


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Row numbers of the table."""
    weight, indices = args[0], args[1]
    write(indices, torch.randint(0, weight.shape[0], indices.shape, generator=generator))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, odd, no index at all, and rows as wide as DeepSeek-V3.2's (of a shorter vocabulary)."""
    table = torch.randn(7, 3, generator=generator)
    yield Sample(kind="small", args=(table, torch.tensor([0, 6, 2])), kwargs={})
    yield Sample(kind="odd", args=(table, torch.tensor([[5], [5], [0]])), kwargs={})
    yield Sample(kind="corner", args=(table, torch.zeros(0, dtype=torch.int64)), kwargs={})
    wide = torch.randn(512, 7168, generator=generator).to(torch.bfloat16)
    yield Sample(kind="traced", args=(wide, torch.tensor([[3, 511, 0, 3]])), kwargs={})


OP = Operator(
    name="aten::embedding",
    version=1,
    summary="rows of a table by number",
    schema="",
    mathematics="out[..., :] = weight[indices[...], :]",
    source="torch documentation of embedding",
    reference=reference,
    fill=fill,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(ratio=1.0, ceiling=0.0, ulps=0.0, reason="values are copied, not computed"),
    verified_against="torch's own CPU kernel",
)

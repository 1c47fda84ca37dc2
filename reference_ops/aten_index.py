"""Advanced indexing: several index tensors at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._spec import Operator, Sample, Tolerance
from day0.reference_ops._write import write

__all__ = ["OP", "reference"]


def reference(self: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
    """Return what the index tensors name."""
    out: torch.Tensor = torch.ops.aten.index.Tensor(self, indices)
    return out


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Positions along each indexed dimension; masks keep their random values."""
    for dim, index in enumerate(args[1]):
        if index is not None and index.dtype not in (torch.bool, torch.uint8):
            write(index, torch.randint(0, max(args[0].shape[dim], 1), index.shape, generator=generator))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """One index, one after a whole dimension, a mask that keeps nothing, and gpt-oss' tokens in the order of experts."""
    table = torch.randn(4, 5, generator=generator)
    yield Sample(kind="small", args=(table, [torch.tensor([3, 0])]), kwargs={})
    yield Sample(kind="odd", args=(table, [None, torch.tensor([[4], [1]])]), kwargs={})
    yield Sample(kind="corner", args=(table, [torch.zeros(4, dtype=torch.bool)]), kwargs={})
    tokens = torch.randn(8, 2880, generator=generator).to(torch.bfloat16)
    yield Sample(kind="traced", args=(tokens, [torch.randint(0, 8, (32,), generator=generator)]), kwargs={})


OP = Operator(
    name="aten::index",
    version=1,
    summary="advanced indexing with integer or boolean tensors",
    schema="",
    mathematics="out = self[indices], None standing for a whole dimension",
    source="torch documentation of index",
    reference=reference,
    fill=fill,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(ratio=1.0, ceiling=0.0, ulps=0.0, reason="values are copied, not computed"),
    verified_against="torch's own CPU kernel",
)

"""Write through advanced indexing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._spec import Operator, Sample, Tolerance
from day0.reference_ops._write import write

__all__ = ["OP", "reference"]


def reference(
    self: torch.Tensor, indices: list[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """Write in place and return self."""
    out: torch.Tensor = torch.ops.aten.index_put_.default(self, indices, values, accumulate)
    return out


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Distinct places where that is possible: who wins a place that is named twice is not specified."""
    whole = [index for index in args[1] if index is not None and index.dtype not in (torch.bool, torch.uint8)]
    for dim, index in enumerate(args[1]):
        if index is None or index.dtype in (torch.bool, torch.uint8):
            continue
        size = args[0].shape[dim]
        if len(whole) == 1 and index.numel() <= size:
            write(index, torch.randperm(size, generator=generator)[: index.numel()].reshape(index.shape))
        else:
            write(index, torch.arange(index.numel()).reshape(index.shape) % max(size, 1))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Some rows, a column, nothing, and rows of DeepSeek-V3.2's latent cache."""
    values = torch.randn(2, 5, generator=generator)
    yield Sample(kind="small", args=(torch.zeros(4, 5), [torch.tensor([3, 0])], values), kwargs={})
    yield Sample(kind="odd", args=(torch.zeros(4, 5), [None, torch.tensor([2])], torch.ones(4, 1)), kwargs={})
    nothing = torch.zeros(4, dtype=torch.bool)
    yield Sample(kind="corner", args=(torch.zeros(4, 5), [nothing], torch.tensor(1.0)), kwargs={})
    cache, rows = torch.zeros(64, 576, dtype=torch.bfloat16), torch.randn(4, 576, generator=generator)
    slots = torch.randperm(64, generator=generator)[:4]
    yield Sample(kind="traced", args=(cache, [slots], rows.to(torch.bfloat16)), kwargs={})


OP = Operator(
    name="aten::index_put_",
    version=1,
    summary="writes values where index tensors point",
    schema="",
    mathematics="self[indices] = values",
    source="torch documentation of index_put_",
    reference=reference,
    fill=fill,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(ratio=1.0, ceiling=0.0, ulps=0.0, reason="values are copied, not computed"),
    verified_against="torch's own CPU kernel",
)

"""torch's top-k: values and indices along one dimension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._spec import Operator, Sample, Tolerance

__all__ = ["OP", "reference"]


def reference(
    self: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k largest (or smallest) values and their int64 indices, best first."""
    values, indices = torch.sort(self, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k).contiguous(), indices.narrow(dim, 0, k).contiguous()


def choice_dim(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The third argument."""
    return int(kwargs.get("dim", args[2] if len(args) > 2 else -1))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, ties, all of a row, the indexer of DeepSeek-V3.2 and the router of gpt-oss."""
    yield Sample(kind="small", args=(torch.randn(3, 8, generator=generator), 2), kwargs={})
    yield Sample(kind="odd", args=(torch.randint(0, 3, (2, 7, 3), generator=generator).float(), 4, 1), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(1, 5), 5), kwargs={})
    yield Sample(kind="traced", args=(torch.randn(1, 2, 4096, generator=generator), 2048), kwargs={})
    yield Sample(kind="traced", args=(torch.randn(8, 128, generator=generator).to(torch.bfloat16), 4), kwargs={})


OP = Operator(
    name="aten::topk",
    version=1,
    summary="k largest values along a dimension",
    schema="",
    mathematics="values sorted best first; which of two equal values is taken is not specified",
    source="torch.topk documentation",
    reference=reference,
    samples=samples,
    comparison="index_order",
    index_output=1,
    choice_dim=choice_dim,
    tolerance=Tolerance(
        ratio=1.0, ceiling=0.0, ulps=1.0, reason="values are copies; only equal ones may change places"
    ),
    verified_against="torch's own CPU kernel",
)

"""torch's sort: values and indices along one dimension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._spec import Operator, Sample, Tolerance

__all__ = ["OP", "reference"]


def reference(self: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sorted values and the int64 indices they came from."""
    kwargs.setdefault("stable", True)
    values, indices = torch.sort(self, **_named(args), **kwargs)
    return values, indices


def _named(args: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(("dim", "descending"), args, strict=False))


def choice_dim(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The second argument."""
    return int(kwargs.get("dim", args[1] if len(args) > 1 else -1))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, ties along another dimension, an empty row, and the experts of 8 tokens of gpt-oss."""
    yield Sample(kind="small", args=(torch.randn(3, 8, generator=generator),), kwargs={})
    yield Sample(kind="odd", args=(torch.randint(0, 3, (5, 2), generator=generator).float(), 0, True), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(2, 0),), kwargs={})
    experts = torch.randint(0, 128, (8 * 4,), generator=generator)
    yield Sample(kind="traced", args=(experts,), kwargs={"stable": True})


OP = Operator(
    name="aten::sort",
    version=1,
    summary="sort along a dimension",
    schema="",
    mathematics="values in order; equal ones keep their order only if stable is asked for",
    source="torch.sort documentation",
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

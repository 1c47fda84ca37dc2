"""Write values along one dimension by index, in place."""

from __future__ import annotations

from typing import Any

import torch

from day0.reference_ops._scatter import fill, samples
from day0.reference_ops._spec import Operator, Tolerance

__all__ = ["OP", "reference"]


def reference(self: torch.Tensor, dim: int, index: torch.Tensor, source: Any) -> torch.Tensor:
    """Return self with the values written."""
    return self.scatter_(dim, index, source)


OP = Operator(
    name="aten::scatter_",
    version=1,
    summary="writes values along a dimension by index, in place",
    schema="",
    mathematics="self[i][index[i][j]] = source[i][j] along dim",
    source="torch documentation of scatter_",
    reference=reference,
    fill=fill,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(ratio=1.0, ceiling=0.0, ulps=0.0, reason="values are copied, not computed"),
    verified_against="torch's own CPU kernel",
)

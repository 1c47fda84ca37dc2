"""Write values along one dimension by index, into a copy."""

from __future__ import annotations

from typing import Any

import torch

from day0.reference_ops._scatter import fill, samples
from day0.reference_ops._spec import Operator, Tolerance

__all__ = ["OP", "reference"]


def reference(self: torch.Tensor, dim: int, index: torch.Tensor, source: Any) -> torch.Tensor:
    """Return a copy with the values written."""
    return self.scatter(dim, index, source)


OP = Operator(
    name="aten::scatter",
    version=1,
    summary="writes values along a dimension by index, into a copy",
    schema="",
    mathematics="out = self; out[i][index[i][j]] = source[i][j] along dim",
    source="torch documentation of scatter",
    reference=reference,
    fill=fill,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(ratio=1.0, ceiling=0.0, ulps=0.0, reason="values are copied, not computed"),
    verified_against="torch's own CPU kernel",
)

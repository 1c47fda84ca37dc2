"""Grouped matrix multiplication, the workhorse of mixture-of-experts layers.

Shape suffixes: N tokens, K inner size, M outer size, G groups (experts).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._spec import Operator, Sample, Tolerance

__all__ = ["OP", "reference"]


def reference(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiply each group of rows with its own matrix.

    [N, K] x [G, K, M] with `offs` [G], the end of each group: rows beyond the last end are 0.
    [G, N, K] x [G, K, M] without `offs`. Sums are in float32 (float64 for float64).
    """
    if bias is not None:
        raise RuntimeError("bias is not part of this contract version")
    wide = torch.float64 if self.dtype == torch.float64 else torch.float32
    if offs is None:
        return torch.bmm(self.to(wide), mat2.to(wide)).to(out_dtype or self.dtype)
    if self.dim() != 2 or mat2.dim() != 3:
        raise RuntimeError("contract version 1 covers [N, K] x [G, K, M] with offsets")
    out_NM = torch.zeros(self.shape[0], mat2.shape[-1], dtype=wide, device=self.device)
    begin = 0
    for group, end in enumerate(offs.tolist()):
        out_NM[begin:end] = self[begin:end].to(wide) @ mat2[group].to(wide)
        begin = end
    return out_NM.to(out_dtype or self.dtype)


def fake(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Shape and dtype of the result: torch's own meta kernel takes bfloat16 only, real devices take more."""
    rows = self.shape[:-1] if mat2.dim() == 2 or self.dim() == mat2.dim() or offs is not None else self.shape
    return self.new_empty((*rows, mat2.shape[-1]), dtype=out_dtype or self.dtype)


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Group ends that rise to the number of tokens; an empty group is legal and happens."""
    offs = kwargs.get("offs", args[2] if len(args) > 2 else None)
    if offs is None:
        return
    tokens = args[0].shape[0]
    ends = torch.randint(0, tokens + 1, offs.shape, generator=generator).sort().values
    ends[-1:] = tokens
    offs.copy_(ends)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, odd sizes with an empty group, one token, and DeepSeek-V3.2's gate (an eighth of its 2048 rows)."""
    for kind, (tokens, inner, outer, groups), dtype in (
        ("small", (8, 16, 16, 2), torch.float32),
        ("odd", (7, 24, 40, 5), torch.float32),
        ("corner", (1, 16, 16, 3), torch.float32),
        ("traced", (8, 7168, 256, 3), torch.bfloat16),
    ):
        rows_NK = torch.randn(tokens, inner, generator=generator).to(dtype)
        mats_GKM = torch.randn(groups, inner, outer, generator=generator).to(dtype)
        kwargs = {"offs": torch.zeros(groups, dtype=torch.int32)}
        fill((rows_NK, mats_GKM), kwargs, generator)
        yield Sample(kind=kind, args=(rows_NK, mats_GKM), kwargs=kwargs)


OP = Operator(
    name="aten::_grouped_mm",
    version=1,
    summary="grouped matrix multiplication over expert rows",
    schema="",
    mathematics="out[n] = self[n] @ mat2[g] for the rows n of group g, groups given by their ends",
    source="torch.nn.functional.grouped_mm documentation",
    reference=reference,
    fake=fake,
    fill=fill,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0, ceiling=1e-2, ulps=4.0, reason="one sum over K in float32; 4 ULP cover another order of it"
    ),
    verified_against="torch's own CPU kernel",
)

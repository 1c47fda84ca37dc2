"""Routed experts: tokens sorted by expert, two grouped products around an activation, and a weighted sum."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _experts(x_ND: torch.Tensor, up_EDF: torch.Tensor, down_EFD: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
    both_NF = torch._grouped_mm(x_ND, up_EDF, offs=ends_E)
    gate_NF, up_NF = both_NF.chunk(2, dim=-1)
    return torch._grouped_mm(F.silu(gate_NF) * up_NF, down_EFD, offs=ends_E)


def _sample() -> Call:
    up_EDF, down_EFD = (torch.ones(2, *size, dtype=torch.bfloat16) for size in ((16, 32), (16, 16)))
    return Call(_experts, torch.ones(4, 16, dtype=torch.bfloat16), up_EDF, down_EFD, torch.tensor([2, 4]).int())


def _near_miss() -> Call:
    """One grouped product alone: a projection with a weight for each group."""

    def grouped(x_ND: torch.Tensor, up_EDF: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
        return F.silu(torch._grouped_mm(x_ND, up_EDF, offs=ends_E))

    x_ND, up_EDF = torch.ones(4, 16, dtype=torch.bfloat16), torch.ones(2, 16, 32, dtype=torch.bfloat16)
    return Call(grouped, x_ND, up_EDF, torch.tensor([2, 4]).int())


BLOCK = Block(
    title="routed experts",
    operators=("day0::fused_experts", "day0::mxfp4_decode"),
    why="no sorted copies of the tokens, and the inner width is never written",
    classes=("*Experts",),
    confirm=("_grouped_mm", "bmm", "mm", "day0::fused_experts"),
    paths=("_grouped_mm! .. silu|gelu|sigmoid|clamp .. mul/2 .. _grouped_mm",),
    absorbs=("index", "sort", "floor_divide", "histc", "cumsum", "_to_copy", "add", "mul", "clamp"),
    scope="parent",
    sample=_sample,
    near_miss=_near_miss,
)

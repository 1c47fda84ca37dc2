"""Fusion: gate and up projection are one product, and the activation works on its result."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _three(x_ND: torch.Tensor, gate_DF: torch.Tensor, up_DF: torch.Tensor) -> torch.Tensor:
    return F.silu(x_ND @ gate_DF) * (x_ND @ up_DF)


def _sample() -> Call:
    return Call(_three, torch.ones(3, 8), torch.ones(8, 16), torch.ones(8, 16))


def _near_miss() -> Call:
    """What the activation multiplies is no product."""
    return Call(
        lambda x_ND, gate_DF, y_NF: F.silu(x_ND @ gate_DF) * y_NF,
        torch.ones(3, 8),
        torch.ones(8, 16),
        torch.ones(3, 16),
    )


BLOCK = Block(
    title="gate + up + activation",
    kind="fusion",
    operators=("day0::gated_activation",),
    why="one wide product; neither gate nor up is written",
    paths=("mm|addmm silu|gelu mul/2!", "_grouped_mm silu|gelu mul/2!"),
    also=("mm|addmm|_grouped_mm mul/2!",),
    absorbs=("mm", "addmm"),
    scope="any",
    sample=_sample,
    near_miss=_near_miss,
)

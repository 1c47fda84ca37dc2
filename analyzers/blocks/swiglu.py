"""A dense feed-forward network with a gate."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _network(x_ND: torch.Tensor, up_DF: torch.Tensor, down_FD: torch.Tensor) -> torch.Tensor:
    return (F.silu(x_ND @ up_DF) * (x_ND @ up_DF)) @ down_FD


def _sample() -> Call:
    return Call(_network, torch.ones(3, 8), torch.ones(8, 16), torch.ones(16, 8))


def _near_miss() -> Call:
    """Without a gate."""
    return Call(lambda x_ND, up_DF, down_FD: F.silu(x_ND @ up_DF) @ down_FD, *_sample().inputs).named("PlainMLP")


BLOCK = Block(
    title="gated feed-forward network",
    operators=("day0::gated_activation",),
    why="gate and up are one product, and the activation needs no pass of its own",
    classes=("*MLP", "DenseFeedForward"),
    unlike=("GptOssMLP", "PlainMLP", "*VisionMLP"),
    confirm=("silu", "mul", "gelu", "day0::gated_activation"),
    paths=("mm|addmm silu|gelu mul/2! mm|addmm",),
    absorbs=("mm", "addmm"),
    scope="parent",
    sample=_sample,
    near_miss=_near_miss,
)

"""Fusion: a residual is added, and the sum goes through a normalisation."""

from __future__ import annotations

import torch

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _both(x_XD: torch.Tensor, residual_XD: torch.Tensor, weight_D: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    sum_XD = x_XD + residual_XD
    return sum_XD * torch.rsqrt(sum_XD.pow(2).mean(-1, keepdim=True) + 1e-6) * weight_D, sum_XD


def _sample() -> Call:
    return Call(_both, torch.ones(3, 8), torch.ones(3, 8), torch.ones(8))


def _near_miss() -> Call:
    """The sum goes elsewhere; what is normalised is one of its terms."""

    def apart(x_XD: torch.Tensor, y_XD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x_XD + y_XD, x_XD * torch.rsqrt(x_XD.pow(2).mean(-1, keepdim=True) + 1e-6)

    return Call(apart, torch.ones(3, 8), torch.ones(3, 8))


BLOCK = Block(
    title="add residual, then norm",
    kind="fusion",
    operators=("day0::fused_add_rms_norm",),
    why="the sum is normalised while it is still on chip",
    paths=("add/2 pow|square! mean ?add/1 rsqrt mul/2 ?mul/2", "add/2 rms_norm|_fused_rms_norm|day0::rms_norm!"),
    scope="any",
    sample=_sample,
    near_miss=_near_miss,
)

"""Residuals over blocks of layers: a softmax over what earlier blocks left behind."""

from __future__ import annotations

import torch

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _mix(bank_NXD: torch.Tensor, norm_D: torch.Tensor, score_D: torch.Tensor) -> torch.Tensor:
    normed_NXD = bank_NXD * torch.rsqrt(bank_NXD.pow(2).mean(-1, keepdim=True) + 1e-5)
    weight_NX = torch.softmax((normed_NXD * (norm_D * score_D)).sum(-1), dim=0)
    return (weight_NX[..., None] * bank_NXD).sum(0)


def _sample() -> Call:
    return Call(_mix, torch.ones(3, 2, 8), torch.ones(8), torch.ones(8))


def _near_miss() -> Call:
    """Pooling by a learnt score: a softmax and a weighted sum, but of values that were not normalised."""

    def pool(x_NXD: torch.Tensor, score_D: torch.Tensor) -> torch.Tensor:
        weight_NX = torch.softmax((x_NXD * score_D).sum(-1), dim=0)
        return (weight_NX[..., None] * x_NXD).sum(0)

    return Call(pool, torch.ones(3, 2, 8), torch.ones(8))


BLOCK = Block(
    title="attention over residuals",
    operators=("day0::attention_residual",),
    why="reads each kept residual once instead of three times",
    classes=("*AttentionResidual", "*AttnRes"),
    confirm=("_softmax", "day0::attention_residual"),
    paths=("rsqrt mul/2 mul/2 sum|mm|bmm _softmax! mul/2|bmm|mm ?sum",),
    absorbs=("mul", "add", "mean", "pow", "stack", "_to_copy"),
    sample=_sample,
    near_miss=_near_miss,
)

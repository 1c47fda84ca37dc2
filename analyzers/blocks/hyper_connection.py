"""Hyper-connections: several residual streams, mixed by a matrix that is made doubly stochastic."""

from __future__ import annotations

import torch

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _mix(raw_XNN: torch.Tensor) -> torch.Tensor:
    mix_XNN = torch.softmax(raw_XNN, dim=-1)
    for _ in range(3):
        mix_XNN = mix_XNN / (mix_XNN.sum(-1, keepdim=True) + 1e-6)
        mix_XNN = mix_XNN / (mix_XNN.sum(-2, keepdim=True) + 1e-6)
    return mix_XNN


def _sample() -> Call:
    return Call(_mix, torch.ones(2, 4, 4))


def _near_miss() -> Call:
    """Divided by its sum once: weights, and no doubly stochastic matrix."""
    return Call(lambda raw_XNN: raw_XNN / (raw_XNN.sum(-1, keepdim=True) + 1e-6), torch.ones(2, 4, 4))


BLOCK = Block(
    title="hyper-connection",
    operators=("day0::hyper_connection_pre", "day0::hyper_connection_post"),
    why="twenty rounds of sums and divisions in one launch",
    classes=("DeepseekV4Hyper*", "Glm5NextTextHyper*"),
    confirm=("sum", "_softmax", "day0::hyper_connection_pre"),
    paths=("_softmax! ?add/1 sum ?add/1 div sum ?add/1 div",),
    absorbs=("sum", "add", "div", "sigmoid", "mul"),
    sample=_sample,
    near_miss=_near_miss,
)

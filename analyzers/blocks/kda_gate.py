"""The forget gate of Kimi delta attention: how fast each channel of the state decays."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _gate(raw_XK: torch.Tensor, a_log_K: torch.Tensor, bias_K: torch.Tensor) -> torch.Tensor:
    return -a_log_K.exp() * F.softplus(raw_XK + bias_K)


def _sample() -> Call:
    return Call(_gate, torch.ones(3, 8), torch.ones(8), torch.ones(8))


def _near_miss() -> Call:
    """An activation with softplus in it."""
    return Call(lambda x_XK: x_XK * torch.tanh(F.softplus(x_XK)), torch.ones(3, 8))


BLOCK = Block(
    title="forget gate of KDA",
    operators=("day0::kda_gate",),
    why="elementwise calls in one pass, in float32 without a copy",
    classes=("KimiLinearForgetGate", "Glm5NextTextForgetGate"),
    confirm=("softplus", "sigmoid", "exp", "day0::kda_gate"),
    paths=("exp neg mul/2!", "exp mul/2! neg"),
    absorbs=("softplus", "add", "_to_copy", "exp", "sigmoid", "mul"),
    when=lambda entry: any(value.kind == "tensor" for value in entry.outputs),
    sample=_sample,
    near_miss=_near_miss,
)

"""The projections of latent attention: down to the latents, up to the heads, and out."""

from __future__ import annotations

import torch

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _sample() -> Call:
    function = torch.nn.functional.linear
    return Call(function, torch.ones(3, 8), torch.ones(4, 8)).named("DeepseekV32Attention", "Linear")


def _near_miss() -> Call:
    """A linear layer of another module."""
    return Call(torch.nn.functional.linear, torch.ones(3, 8), torch.ones(4, 8)).named("SomeAttention", "Linear")


BLOCK = Block(
    title="projections of latent attention",
    operators=(),
    why="projections of one input are one product when their weights are stacked",
    classes=(
        "DeepseekV32Attention/Linear",
        "GlmMoeDsaAttention/Linear",
        "Glm5NextTextAttention/Linear",
        "KimiLinearAttention/Linear",
        "DeepseekV4Attention/*Linear",
        "MlaAttention/Linear",
    ),
    confirm=("mm", "addmm", "linear", "bmm"),
    counts=("mm", "addmm", "linear", "bmm"),
    sample=_sample,
    near_miss=_near_miss,
)

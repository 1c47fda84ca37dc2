"""Fusion: a normalisation whose result is quantised at once."""

from __future__ import annotations

import torch

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _both(x_XD: torch.Tensor, weight_D: torch.Tensor) -> torch.Tensor:
    normed_XD = x_XD * torch.rsqrt(x_XD.pow(2).mean(-1, keepdim=True) + 1e-6) * weight_D
    scale_X1 = normed_XD.abs().amax(-1, keepdim=True) / 448.0
    return (normed_XD / scale_X1).to(torch.float8_e4m3fn)


def _sample() -> Call:
    return Call(_both, torch.ones(3, 8), torch.ones(8))


def _near_miss() -> Call:
    """What is quantised is the input, not what was normalised."""

    def apart(x_XD: torch.Tensor, weight_D: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed_XD = x_XD * torch.rsqrt(x_XD.pow(2).mean(-1, keepdim=True) + 1e-6) * weight_D
        return normed_XD, (x_XD / (x_XD.abs().amax(-1, keepdim=True) / 448.0)).to(torch.float8_e4m3fn)

    return Call(apart, torch.ones(3, 8), torch.ones(8))


BLOCK = Block(
    title="norm, then quantise",
    kind="fusion",
    operators=("day0::rms_norm_quantise",),
    why="the normalised row is written in eight bits, once",
    paths=(
        "rsqrt mul/2 ?mul/2 abs! amax|max .. div|mul",
        "rsqrt mul/2 ?mul/2 day0::fp8_block_quantise!",
        "day0::rms_norm day0::fp8_block_quantise!",
        "rms_norm|_fused_rms_norm abs! amax|max .. div|mul",
    ),
    absorbs=("mul", "pow", "mean", "add", "_to_copy"),
    scope="any",
    sample=_sample,
    near_miss=_near_miss,
)

"""Root mean square normalisation, as models write it out: seven calls, one kernel."""

from __future__ import annotations

import torch

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _norm(x_XD: torch.Tensor, weight_D: torch.Tensor) -> torch.Tensor:
    wide_XD = x_XD.float()
    wide_XD = wide_XD * torch.rsqrt(wide_XD.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight_D * wide_XD.to(x_XD.dtype)


def _sample() -> Call:
    return Call(_norm, torch.ones(3, 8, dtype=torch.bfloat16), torch.ones(8, dtype=torch.bfloat16))


def _near_miss() -> Call:
    """The mean is taken away first: a layer normalisation."""

    def layer_norm(x_XD: torch.Tensor, weight_D: torch.Tensor) -> torch.Tensor:
        x_XD = x_XD - x_XD.mean(-1, keepdim=True)
        return weight_D * (x_XD / (x_XD.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt())

    return Call(layer_norm, torch.ones(3, 8), torch.ones(8)).named("LayerNorm")


BLOCK = Block(
    title="RMS normalisation",
    operators=("day0::rms_norm",),
    why="reads and writes each row once",
    classes=("*RMSNorm", "*RmsNorm"),
    unlike=("*GatedRMSNorm",),
    confirm=("rsqrt", "rms_norm", "_fused_rms_norm"),
    paths=("pow|square|mul/1 mean ?add/1 rsqrt! mul/2 ?mul/2", "pow|square mean ?add/1 sqrt! reciprocal|div ?mul/2"),
    never=("mean sub/2 pow|square|mul mean ?add/1 sqrt|rsqrt!",),
    absorbs=("_to_copy",),
    sample=_sample,
    near_miss=_near_miss,
)

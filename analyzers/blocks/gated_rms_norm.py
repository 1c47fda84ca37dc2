"""RMS normalisation whose result a gate multiplies: the output norm of KDA layers."""

from __future__ import annotations

import torch

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _norm(x_XD: torch.Tensor, gate_XD: torch.Tensor, weight_D: torch.Tensor) -> torch.Tensor:
    normed_XD = x_XD * torch.rsqrt(x_XD.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight_D * normed_XD * torch.sigmoid(gate_XD)


def _sample() -> Call:
    return Call(_norm, torch.ones(3, 8), torch.ones(3, 8), torch.ones(8)).named("KimiLinearRMSNormGated")


def _near_miss() -> Call:
    """A class of that name without a normalisation in it."""
    return Call(lambda x_XD: x_XD * torch.sigmoid(x_XD), torch.ones(3, 8)).named("OtherRMSNormGated")


BLOCK = Block(
    title="gated RMS normalisation",
    operators=(),
    why="normalises and gates in one pass",
    classes=("*RMSNormGated", "*GatedRMSNorm"),
    confirm=("rsqrt", "rms_norm", "_fused_rms_norm"),
    sample=_sample,
    near_miss=_near_miss,
)

"""Rotary positions, written out inside attention: halves or pairs, swapped, multiplied and added."""

from __future__ import annotations

import torch

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _rope(x_XR: torch.Tensor, cos_XR: torch.Tensor, sin_XR: torch.Tensor) -> torch.Tensor:
    half = x_XR.shape[-1] // 2
    turned_XR = torch.cat((-x_XR[..., half:], x_XR[..., :half]), dim=-1)
    return x_XR * cos_XR + turned_XR * sin_XR


def _sample() -> Call:
    return Call(_rope, torch.ones(3, 8), torch.ones(3, 8), torch.ones(3, 8))


def _near_miss() -> Call:
    """Halves are joined again, but nothing is turned: a gate."""

    def gate(x_XR: torch.Tensor, cos_XR: torch.Tensor) -> torch.Tensor:
        half = x_XR.shape[-1] // 2
        return torch.cat((x_XR[..., half:] * 2, x_XR[..., :half]), dim=-1) * cos_XR + x_XR

    return Call(gate, torch.ones(3, 8), torch.ones(3, 8))


BLOCK = Block(
    title="rotary positions",
    operators=("day0::rope",),
    why="rotates in place of the projection's result",
    paths=("neg cat|stack mul/2 add/2!", "mul/2 sub/2 cat|stack!"),
    absorbs=("mul", "add", "sub", "neg", "_to_copy"),
    carves=("sparse_mla_prefill", "sparse_mla_decode", "attention"),
    sample=_sample,
    near_miss=_near_miss,
)

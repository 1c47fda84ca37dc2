"""Kimi delta attention, one token at a time against the state."""

from __future__ import annotations

import torch

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _step(state_HKV: torch.Tensor, k_HK: torch.Tensor, v_HV: torch.Tensor, g_HK: torch.Tensor) -> torch.Tensor:
    state_HKV = state_HKV * g_HK.exp()[..., None]
    memory_HV = (state_HKV * k_HK[..., None]).sum(-2)
    state_HKV = state_HKV + k_HK[..., None] * (v_HV - memory_HV)[..., None, :]
    return (state_HKV * k_HK[..., None]).sum(-2)


def _sample() -> Call:
    return Call(_step, torch.ones(2, 3, 5), torch.ones(2, 3), torch.ones(2, 5), torch.ones(2, 3))


def _near_miss() -> Call:
    """A decaying sum without the delta rule: nothing is taken away before it is added."""

    def decay(state_HKV: torch.Tensor, k_HK: torch.Tensor, v_HV: torch.Tensor, g_HK: torch.Tensor) -> torch.Tensor:
        state_HKV = state_HKV * g_HK.exp()[..., None] + k_HK[..., None] * v_HV[..., None, :]
        return (state_HKV * k_HK[..., None]).sum(-2)

    return Call(decay, *_sample().inputs)


BLOCK = Block(
    title="Kimi delta attention, recurrent",
    operators=("day0::kda_recurrent",),
    why="the state is read and written once",
    classes=("KimiLinearDeltaAttention", "Glm5NextTextLinearAttention"),
    confirm=("exp", "cumsum", "day0::kda_recurrent"),
    paths=("exp! mul/2 .. sum|bmm sub/2 .. mul/2 .. add/2 .. sum|bmm",),
    absorbs=("mul", "exp", "neg", "sub", "add", "sum", "_to_copy", "tril", "bmm"),
    phases="one",
    sample=_sample,
    near_miss=_near_miss,
)

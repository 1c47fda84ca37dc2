"""Kimi delta attention, many tokens at a time in chunks."""

from __future__ import annotations

import torch

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _chunk(q_HCK: torch.Tensor, k_HCK: torch.Tensor, v_HCV: torch.Tensor, g_HCK: torch.Tensor) -> torch.Tensor:
    decay_HCK = g_HCK.cumsum(1)
    inner_HCC = torch.bmm(k_HCK * decay_HCK.exp(), k_HCK.transpose(1, 2)).tril(-1)
    new_HCV = v_HCV - torch.bmm(inner_HCC, v_HCV)
    return torch.bmm(torch.bmm(q_HCK, k_HCK.transpose(1, 2)), new_HCV)


def _sample() -> Call:
    return Call(_chunk, *(torch.ones(2, 4, 3) for _ in range(4)))


def _near_miss() -> Call:
    """Products of chunks without a decay that adds up."""

    def plain(q_HCK: torch.Tensor, k_HCK: torch.Tensor, v_HCV: torch.Tensor) -> torch.Tensor:
        return torch.bmm(torch.bmm(q_HCK.exp(), k_HCK.transpose(1, 2)), v_HCV)

    return Call(plain, *(torch.ones(2, 4, 3) for _ in range(3)))


BLOCK = Block(
    title="Kimi delta attention, chunked",
    operators=("day0::kda_chunked",),
    why="chunks stay on chip instead of a loop of small calls",
    classes=("KimiLinearDeltaAttention", "Glm5NextTextLinearAttention"),
    confirm=("exp", "cumsum", "day0::kda_chunked"),
    paths=("cumsum! .. exp mul/2 .. bmm .. sub/2 .. bmm",),
    absorbs=("mul", "exp", "neg", "sub", "add", "sum", "_to_copy", "tril", "bmm"),
    phases="many",
    sample=_sample,
    near_miss=_near_miss,
)

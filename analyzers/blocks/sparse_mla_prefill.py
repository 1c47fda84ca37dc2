"""Attention over chosen tokens of a latent cache, many tokens at a time."""

from __future__ import annotations

import torch

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _attend(q_HSD: torch.Tensor, key_HTD: torch.Tensor, chosen_HSK: torch.Tensor) -> torch.Tensor:
    score_HST = torch.bmm(q_HSD, key_HTD.transpose(1, 2))
    hidden_HST = torch.ones_like(score_HST).scatter(-1, chosen_HSK, 0.0)
    weight_HST = torch.softmax(torch.where(hidden_HST > 0, float("-inf"), score_HST), dim=-1)
    return torch.bmm(weight_HST, key_HTD)


def _sample() -> Call:
    tokens = 3
    chosen_HSK = torch.zeros(2, tokens, 2, dtype=torch.int64)
    return Call(_attend, torch.ones(2, tokens, 8), torch.ones(2, 5, 8), chosen_HSK)


def _near_miss() -> Call:
    """Dense attention: nothing is chosen."""

    def dense(q_HSD: torch.Tensor, key_HTD: torch.Tensor) -> torch.Tensor:
        weight_HST = torch.softmax(torch.bmm(q_HSD, key_HTD.transpose(1, 2)), dim=-1)
        return torch.bmm(weight_HST, key_HTD)

    return Call(dense, torch.ones(2, 3, 8), torch.ones(2, 5, 8))


BLOCK = Block(
    title="sparse latent attention, prefill",
    operators=("day0::sparse_mla_prefill",),
    why="reads only the chosen rows of the cache, and writes no scores",
    classes=("DeepseekV32Attention", "GlmMoeDsaAttention", "Glm5NextTextAttention", "DeepseekV4Attention"),
    confirm=("scatter", "_safe_softmax", "_softmax", "topk", "gather"),
    paths=("scatter .. where|masked_fill|add|mul .. _softmax|_safe_softmax! .. bmm",),
    absorbs=("bmm", "mul", "_to_copy", "masked_fill", "bitwise_not", "bitwise_and", "ones_like", "new_ones", "gt"),
    phases="many",
    sample=_sample,
    near_miss=_near_miss,
)

"""Dense attention that is written out: scores, softmax, weighted sum."""

from __future__ import annotations

import torch

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _attend(q_HSD: torch.Tensor, key_HTD: torch.Tensor) -> torch.Tensor:
    weight_HST = torch.softmax(torch.bmm(q_HSD, key_HTD.transpose(1, 2)) * 0.3, dim=-1)
    return torch.bmm(weight_HST, key_HTD)


def _sample() -> Call:
    return Call(_attend, torch.ones(2, 3, 8), torch.ones(2, 5, 8))


def _near_miss() -> Call:
    """A softmax over features that no scores went into."""

    def gate(x_HSD: torch.Tensor, weight_HDT: torch.Tensor) -> torch.Tensor:
        return torch.bmm(torch.softmax(x_HSD + 1.0, dim=-1), weight_HDT)

    return Call(gate, torch.ones(2, 3, 8), torch.ones(2, 8, 8))


BLOCK = Block(
    title="dense attention",
    operators=("aten::scaled_dot_product_attention",),
    why="a flash kernel writes no scores",
    classes=("GptOssAttention", "KimiLinearAttention", "Glm5NextVisionAttention"),
    confirm=("_softmax", "_safe_softmax", "scaled_dot_product_attention", "_scaled_dot_product_flash_attention"),
    paths=("bmm|mm .. _softmax|_safe_softmax! .. bmm|mm",),
    never=("scatter .. where|masked_fill|add|mul .. _softmax|_safe_softmax!",),
    absorbs=("mul", "_to_copy", "scalar_tensor", "where"),
    sample=_sample,
    near_miss=_near_miss,
)

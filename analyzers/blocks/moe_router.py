"""The router of a mixture of experts: scores, the choice of experts, and their weights."""

from __future__ import annotations

import torch

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _route(x_ND: torch.Tensor, weight_DE: torch.Tensor, bias_E: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    score_NE = torch.sigmoid(x_ND @ weight_DE)
    chosen_NK = (score_NE + bias_E).topk(2, dim=-1).indices
    weight_NK = score_NE.gather(1, chosen_NK)
    return weight_NK / (weight_NK.sum(-1, keepdim=True) + 1e-20), chosen_NK


def _sample() -> Call:
    return Call(_route, torch.ones(3, 8), torch.ones(8, 6), torch.zeros(6))


def _near_miss() -> Call:
    """Sampling from the largest logits: a softmax and a choice, but no weights for what was chosen."""

    def sample(logits_NV: torch.Tensor) -> torch.Tensor:
        return torch.softmax(logits_NV, dim=-1).topk(2, dim=-1).indices

    return Call(sample, torch.ones(3, 8))


BLOCK = Block(
    title="expert router",
    operators=("day0::moe_router",),
    why="one launch for a score row that fits on chip",
    classes=("*TopkRouter", "*TopKRouter", "DeepseekV4HashRouter", "Router"),
    confirm=("topk", "gather", "day0::moe_router", "index"),
    paths=(
        "mm|addmm sigmoid|_softmax|softplus .. topk! gather ?sum ?div|mul",
        "mm|addmm sigmoid|_softmax|softplus topk! sum div",
        "mm|addmm topk! _softmax",
    ),
    absorbs=("add", "sum", "masked_fill", "scatter", "zeros_like", "bitwise_not", "_to_copy"),
    sample=_sample,
    near_miss=_near_miss,
)

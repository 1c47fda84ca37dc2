"""day0::topk_tokens without a sort of the whole row in any special dtype."""

from __future__ import annotations

import torch

from day0.implementation import Implementation
from day0.reference_ops.topk_tokens import validate

__all__ = ["IMPLEMENTATIONS"]


def by_rank(
    logits_BST: torch.Tensor, topk: int, lengths_BS: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort indices by score and put each where its rank says, -1 where the score was closed."""
    validate(logits_BST, topk, lengths_BS)
    batch, queries, keys = logits_BST.shape
    open_BST = ~(torch.isnan(logits_BST) | torch.isneginf(logits_BST))
    if lengths_BS is not None:
        open_BST = open_BST & (torch.arange(keys, device=logits_BST.device) < lengths_BS[..., None])
    scores_BST = torch.where(open_BST, logits_BST, float("-inf"))
    order_BST = torch.argsort(scores_BST, dim=-1, descending=True, stable=True)
    kept = min(topk, keys)
    count_BS1 = open_BST.sum(dim=-1, keepdim=True).clamp(max=kept)
    rank_K = torch.arange(kept, device=logits_BST.device)
    out_BSK = torch.full((batch, queries, topk), -1, dtype=torch.int32, device=logits_BST.device)
    out_BSK[..., :kept] = torch.where(rank_K < count_BS1, order_BST[..., :kept], -1).to(torch.int32)
    return out_BSK, count_BS1[..., 0].to(torch.int32)


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::topk_tokens",
        contract=2,
        id="rank_cut",
        version="2.0",
        kind="decomposition",
        run=by_rank,
        why="stable argsort, cut by the number of visible tokens: deterministic on every rank",
    ),
)

"""A router for the runs of SGLang, given by --with."""

from __future__ import annotations

import torch

from day0.implementation import Constraints, Implementation


def moe_router(
    logits: torch.Tensor,
    bias: torch.Tensor,
    topk: int,
    scale: float,
    groups: int = 1,
    topk_groups: int = 1,
    score: str = "sigmoid",
    normalise: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose by sigmoid scores with a bias, inside the best groups."""
    if score != "sigmoid":
        raise ValueError(f"this kernel knows sigmoid, not {score}")
    scores = torch.sigmoid(logits)
    choice = (scores + bias).unflatten(-1, (groups, -1))
    best = choice.topk(min(2, choice.shape[-1]), dim=-1).values.sum(-1).topk(topk_groups, dim=-1).indices
    kept = torch.zeros(choice.shape[:-1], dtype=torch.bool).scatter_(-1, best, True)
    chosen = choice.masked_fill(~kept[..., None], float("-inf")).flatten(-2).topk(topk, dim=-1).indices
    weights = scores.gather(-1, chosen)
    if normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * scale, chosen


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::moe_router",
        contract=2,
        id="smoke",
        version="1.0",
        kind="kernel",
        run=moe_router,
        why="torch's topk",
        constraints=Constraints(first_dtype=frozenset({"float32"})),
        rank=10,
    ),
)

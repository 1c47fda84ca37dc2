"""What this package brings to day0: the entry point of pyproject.toml names this module.

Shape suffixes: X any leading dimensions, D features; B batch, S queries, T keys, K chosen.
"""

from __future__ import annotations

import torch

from day0.implementation import Accepted, Call, Constraints, Implementation, Limit, Rejected, TensorFacts, TensorLimit
from day0.reference_ops.rms_norm import validate as validate_norm
from day0.reference_ops.topk_tokens import validate as validate_topk

__all__ = ["IMPLEMENTATIONS", "NAMESPACES"]

NAMESPACES = {"acme/k3.1": "kimi/k3.1"}
"""Where these are looked for: a namespace of our own below Kimi K3.1, so that everybody else's choice stays theirs."""


def silu(self: torch.Tensor) -> torch.Tensor:
    """Return self * sigmoid(self), in float32 and rounded once."""
    wide = self.to(torch.float32)
    return (wide * torch.sigmoid(wide)).to(self.dtype)


def rms_norm(x_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool = True) -> torch.Tensor:
    """Return [..., D] in the dtype of x: a square root and a division, for devices without `rsqrt`."""
    validate_norm(x_XD, weight_D, eps, round_first)
    wide_XD = x_XD.to(torch.float32)
    normed_XD = wide_XD / torch.sqrt((wide_XD * wide_XD).mean(dim=-1, keepdim=True) + eps)
    if round_first:
        normed_XD = normed_XD.to(x_XD.dtype).to(torch.float32)
    return (normed_XD * weight_D.to(torch.float32)).to(x_XD.dtype).contiguous()


def every_open_key(
    logits_BST: torch.Tensor, topk: int, lengths_BS: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places [B, S, K] of every open key, where there are no more keys than places: nothing to sort."""
    validate_topk(logits_BST, topk, lengths_BS)
    batch, queries, keys = logits_BST.shape
    place_T = torch.arange(keys, device=logits_BST.device)
    open_BST = ~(torch.isnan(logits_BST) | torch.isneginf(logits_BST))
    if lengths_BS is not None:
        open_BST = open_BST & (place_T < lengths_BS[..., None])
    scores_BST = torch.where(open_BST, logits_BST, float("-inf"))
    order_BST = torch.argsort(scores_BST, dim=-1, descending=True, stable=True)
    count_BS = open_BST.sum(dim=-1)
    chosen_BST = torch.where(place_T < count_BS[..., None], order_BST, -1)
    out_BSK = torch.full((batch, queries, topk), -1, dtype=torch.int32, device=logits_BST.device)
    out_BSK[..., :keys] = chosen_BST.to(torch.int32)
    return out_BSK, count_BS.to(torch.int32)


def no_more_keys_than_places(call: Call) -> Accepted | Rejected:
    """Takes calls with no more keys than are to be chosen: two arguments compared, which constraints cannot say."""
    logits, topk = call.arguments["logits"], call.arguments["topk"]
    if not isinstance(logits, TensorFacts) or not isinstance(topk, int):
        return Rejected("logits and topk are not what the contract says")
    keys = logits.shape[-1]
    return Accepted() if keys <= topk else Rejected(f"{keys} keys are more than the {topk} to be chosen")


IMPLEMENTATIONS = (
    Implementation(
        operator="aten::silu",
        contract=1,
        id="acme_silu",
        version="1.0",
        kind="kernel",
        run=silu,
        why="two element-wise steps of the device's own, no transfer",
        namespace="acme/k3.1",
        constraints=Constraints(dtypes=frozenset({"float32", "bfloat16"}), max_rank=4),
    ),
    Implementation(
        operator="day0::rms_norm",
        contract=1,
        id="acme_norm",
        version="1.1",
        kind="kernel",
        run=rms_norm,
        why="needs no reciprocal square root",
        namespace="acme/k3.1",
        constraints=Constraints(
            arguments={
                "x": TensorLimit(dtypes=frozenset({"float32", "bfloat16"}), sizes={-1: Limit(multiple_of=8)}),
                "eps": Limit(at_least=1e-8, at_most=1e-2),
            },
            equal=((("x", -1), ("weight", 0)),),
        ),
    ),
    Implementation(
        operator="day0::topk_tokens",
        contract=2,
        id="acme_all",
        version="1.0",
        kind="kernel",
        run=every_open_key,
        why="no choice to make where every key has a place",
        namespace="acme/k3.1",
        predicate=no_more_keys_than_places,
    ),
)

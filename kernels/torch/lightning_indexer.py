"""day0::lightning_indexer as matrix products."""

from __future__ import annotations

import torch

from day0.implementation import Constraints, Implementation
from day0.reference_ops.lightning_indexer import validate, visible

__all__ = ["IMPLEMENTATIONS"]


def by_batched_heads(
    q_BSHD: torch.Tensor, k_BTD: torch.Tensor, w_BSH: torch.Tensor, first_position: int
) -> torch.Tensor:
    """All heads in one batched product [B, H, S, T]: quick, and as large as that."""
    validate(q_BSHD, k_BTD, w_BSH, first_position)
    dot_BHST = torch.matmul(q_BSHD.float().transpose(1, 2), k_BTD.float()[:, None].transpose(-1, -2))
    weight_BHS1 = w_BSH.float().transpose(1, 2)[..., None]
    logits_BST = (torch.relu(dot_BHST) * weight_BHS1).sum(dim=1)
    return _finish(logits_BST, q_BSHD, k_BTD, first_position)


def by_flat_heads(q_BSHD: torch.Tensor, k_BTD: torch.Tensor, w_BSH: torch.Tensor, first_position: int) -> torch.Tensor:
    """Heads and queries as the rows of one plain product, then one product with the weights.

    K3.1 has 32 index heads and no rope on them, so in decode the rows are the heads alone: a matrix instead of a
    batch of 32 vectors, which is what a young batched matmul is slowest at.
    """
    validate(q_BSHD, k_BTD, w_BSH, first_position)
    batch, queries, heads, dim = q_BSHD.shape
    rows_BRD = q_BSHD.float().reshape(batch, queries * heads, dim)
    dot_BRT = torch.relu(torch.bmm(rows_BRD, k_BTD.float().transpose(-1, -2)))
    dot_NHT = dot_BRT.reshape(batch * queries, heads, k_BTD.shape[1])
    logits_N1T = torch.bmm(w_BSH.float().reshape(batch * queries, 1, heads), dot_NHT)
    return _finish(logits_N1T.reshape(batch, queries, k_BTD.shape[1]), q_BSHD, k_BTD, first_position)


def _finish(logits_BST: torch.Tensor, q_BSHD: torch.Tensor, k_BTD: torch.Tensor, first_position: int) -> torch.Tensor:
    queries, heads, dim = q_BSHD.shape[1:]
    hidden_ST = ~visible(queries, k_BTD.shape[1], first_position, q_BSHD.device)
    return torch.where(hidden_ST, float("-inf"), logits_BST * (heads**-0.5 * dim**-0.5))


FLOATS = frozenset({"float16", "bfloat16", "float32"})
IMPLEMENTATIONS = (
    Implementation(
        operator="day0::lightning_indexer",
        contract=1,
        id="batched_heads",
        version="1.0",
        kind="decomposition",
        run=by_batched_heads,
        why="all heads in one batched matrix product",
        constraints=Constraints(dtypes=FLOATS),
    ),
    Implementation(
        operator="day0::lightning_indexer",
        contract=1,
        namespace="kimi/k3.1",
        id="flat_heads",
        version="1.1",
        kind="decomposition",
        run=by_flat_heads,
        why="heads as rows of one matrix product: K3.1 has many index heads and no rope on them",
        constraints=Constraints(dtypes=FLOATS),
    ),
)

"""The indexer of sparse attention: scores of all index heads, summed with weights, and the best chosen."""

from __future__ import annotations

import torch

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _index(q_HSD: torch.Tensor, key_HDT: torch.Tensor, weight_H: torch.Tensor) -> torch.Tensor:
    score_HST = torch.relu(torch.bmm(q_HSD, key_HDT))
    logits_ST = (score_HST * weight_H).sum(0)
    return logits_ST.topk(2, dim=-1).indices


def _sample() -> Call:
    return Call(_index, torch.ones(4, 3, 8), torch.ones(4, 8, 5), torch.ones(4, 1, 1))


def _near_miss() -> Call:
    """A network with ReLU in it, and a choice of its largest outputs: no weights of heads."""

    def network(x_HSD: torch.Tensor, weight_HDT: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.bmm(x_HSD, weight_HDT)).topk(2, dim=-1).indices

    return Call(network, torch.ones(4, 3, 8), torch.ones(4, 8, 5))


BLOCK = Block(
    title="lightning indexer with its choice",
    operators=("day0::lightning_indexer", "day0::topk_tokens", "day0::pool_index_keys", "day0::expand_pools"),
    why="scores stay on chip: heads x queries x keys are never written",
    classes=("DeepseekV32Indexer", "GlmMoeDsaIndexer", "Glm5NextTextIndexer", "DeepseekV4Indexer", "Indexer"),
    confirm=("topk", "relu", "bmm", "day0::lightning_indexer"),
    paths=("bmm|mm|matmul relu ?mul/2 bmm|mm|sum|matmul .. topk!",),
    absorbs=("mul", "_to_copy", "masked_fill", "add"),
    sample=_sample,
    near_miss=_near_miss,
)

"""Tokens of chosen pools against transformers' GLM-5.3-Flash, and against a loop."""

from __future__ import annotations

from functools import partial

import torch

from day0.reference_ops import expand_pools, topk_tokens
from day0.reference_ops.agreement import _indexers
from day0.reference_ops.agreement._comparison import Comparison, worst
from day0.reference_ops.agreement.lightning_indexer import pool_scores

__all__ = ["COMPARISONS"]

CASES = (((0, 0), 0, 27), ((0, 3), 0, 18), ((2, 5), 9, 18), ((3, 0), 21, 1))


def against_transformers(padding: tuple[int, int], before: int, tokens: int) -> float:
    """The whole choice, with its order: pool keys, scores, best pools below their number, and then their tokens."""
    indexer, seen = _indexers.glm5_next(padding, before, tokens)
    first_B, keys, size = torch.tensor(padding), before + tokens, _indexers.POOL
    visible_BS = (torch.arange(before, keys) + 1 - first_B[:, None]).clamp(min=0)
    pools_BSN, _ = topk_tokens.reference(pool_scores(indexer, seen, padding), 3, (visible_BS // size).to(torch.int32))
    mine_BSK, lengths_BS = expand_pools.reference(pools_BSN, first_B, size, before, keys)
    # Theirs has gaps between pools and tail.
    order = (seen.chosen < 0).to(torch.int8).sort(dim=-1, stable=True).indices
    return worst((mine_BSK, seen.chosen.gather(-1, order)), (lengths_BS, (seen.chosen >= 0).sum(dim=-1)))


def against_loop() -> float:
    """Every query by hand, with pools that are not complete, chosen twice, or do not exist."""
    first, size, position, keys = [0, 4, 30], 3, 8, 15
    pools_BSN = torch.randint(-2, 7, (3, 10, 4), generator=torch.Generator().manual_seed(4)).to(torch.int32)
    mine_BSK, lengths_BS = expand_pools.reference(pools_BSN, torch.tensor(first), size, position, keys)
    pairs = []
    for b in range(3):
        for s in range(10):
            seen = [t for t in range(keys) if first[b] <= t <= position + s]
            runs = [seen[n : n + size] for n in range(0, len(seen), size)]
            tail = runs.pop() if runs and len(runs[-1]) < size else []
            row = [t for n in pools_BSN[b, s].tolist() if 0 <= n < len(runs) for t in runs[n]] + tail
            expected_K = torch.tensor(row + [-1] * (mine_BSK.shape[-1] - len(row)))
            pairs += [(mine_BSK[b, s], expected_K), (lengths_BS[b, s], torch.tensor(len(row)))]
    return worst(*pairs)


COMPARISONS = (
    *(
        Comparison(
            operator=expand_pools.NAME,
            variant=f"{tokens} tokens behind {before}, padding {padding[0]} and {padding[1]}",
            against="glm5_next Glm5NextTextIndexer",
            distribution="transformers",
            limit=0.0,
            run=partial(against_transformers, padding, before, tokens),
        )
        for padding, before, tokens in CASES
    ),
    Comparison(
        operator=expand_pools.NAME,
        variant="any pool numbers",
        against="a loop in Python",
        distribution="day0",
        limit=0.0,
        run=against_loop,
    ),
)

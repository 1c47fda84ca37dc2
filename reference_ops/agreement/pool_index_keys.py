"""Keys of pools against transformers' GLM-5.3-Flash."""

from __future__ import annotations

from functools import partial

import torch

from day0.reference_ops import pool_index_keys
from day0.reference_ops.agreement import _indexers
from day0.reference_ops.agreement._comparison import Comparison, worst

__all__ = ["COMPARISONS"]


def against_transformers(padding: tuple[int, int], tokens: int) -> float:
    """Its pools, which leave out those that no row of the batch has; where a row has none, ours are 0."""
    indexer, seen = _indexers.glm5_next(padding, 0, tokens)
    k_BTD, gate_BTD = seen.made["k_norm"], seen.made["gate"]
    valid_BT1 = (torch.arange(tokens) >= torch.tensor(padding)[:, None]).to(torch.float64)[..., None]
    with torch.no_grad(), _indexers.Wide(seen):
        theirs_BND, _, valid_BN = indexer.get_pooled_states(torch.cat((k_BTD, gate_BTD, valid_BT1), dim=-1))
    theirs_BND = theirs_BND.masked_fill(~valid_BN[..., None], 0.0)
    table_PD = indexer.index_kpool_compress_ape.detach()
    mine_BND = pool_index_keys.reference(k_BTD, gate_BTD, table_PD, torch.tensor(padding), _indexers.POOL)
    kept = theirs_BND.shape[1]
    return worst((mine_BND[:, :kept], theirs_BND), (mine_BND[:, kept:], torch.zeros_like(mine_BND[:, kept:])))


COMPARISONS = tuple(
    Comparison(
        operator=pool_index_keys.NAME,
        variant=f"{tokens} tokens, padding {padding[0]} and {padding[1]}",
        against="glm5_next Glm5NextTextIndexer.get_pooled_states",
        distribution="transformers",
        limit=3e-15,
        run=partial(against_transformers, padding, tokens),
    )
    for padding, tokens in (((0, 0), 16), ((0, 3), 18), ((5, 2), 27), ((1, 17), 17))
)

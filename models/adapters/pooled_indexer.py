"""The indexer of GLM-5.3-Flash, which scores pools of tokens and reads the incomplete pool at the end as well.

Padding stands before a sequence, or behind its prompt; holes between tokens in the cache are not known here.

Shape suffixes: B batch, S queries, T keys, H heads, D head dimension, N pools, P tokens in a pool, K tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from day0.models.adapters._adapter import Adapter, Candidate, Probe, Refused, needs
from day0.models.adapters._small import draw, linear, norm, small

__all__ = ["ADAPTER"]

HEADS, HEAD, WIDTH, RANK, POOL, CHOSEN = 16, 12, 24, 20, 3, 2
PADDED = 4


def candidates(module: nn.Module) -> Sequence[Candidate]:
    """One way: no rotation, a tail that is always read."""
    needs(module, "wq_b", "wk", "k_norm", "weights_proj", "head_dim", "index_topk", "index_kpool")
    needs(module, "index_kpool_compress_ape", "index_kpool_compress_gate")
    if not getattr(module, "index_kpool_always_select_tail", True):
        raise Refused("it does not always read the incomplete pool, which day0::expand_pools does")
    if int(module.index_topk) % int(module.index_kpool):  # type: ignore[arg-type]  # numbers in all of them
        raise Refused("its index_topk is no multiple of its index_kpool")
    return [Candidate(text="", forward=_forward)]


def _forward(
    self: Any, hidden_states: torch.Tensor, q_resid: torch.Tensor, attention_mask: torch.Tensor, cache: Any = None
) -> torch.Tensor:
    queries, size = hidden_states.shape[1], self.index_kpool
    q_BSHD = self.wq_b(q_resid).unflatten(-1, (-1, self.head_dim))
    k_BSD = self.k_norm(self.wk(hidden_states))
    gate_BSD = F.linear(hidden_states, self.index_kpool_compress_gate)
    packed = torch.cat((k_BSD, gate_BSD, attention_mask.to(k_BSD.dtype)[..., None]), dim=-1)
    tokens = queries
    if cache is not None:
        packed = cache.update_indexer(packed, self.layer_idx)
        tokens = cache.layers[self.layer_idx].get_seq_length()
    k_BTD, gate_BTD, valid_BT1 = packed.split((self.head_dim, self.head_dim, 1), dim=-1)
    valid_BT, keys = valid_BT1[..., 0].bool(), packed.shape[1]
    first_B = torch.where(valid_BT.any(dim=-1), valid_BT.long().argmax(dim=-1), keys)
    pool_BND = torch.ops.day0.pool_index_keys(k_BTD, gate_BTD, self.index_kpool_compress_ape, first_B, size)
    w_BSH = self.weights_proj(hidden_states.to(self.weights_proj.weight.dtype)).float()
    # Behind the last pool: no pool is closed here, but by the lengths.
    logits_BSN = torch.ops.day0.lightning_indexer(q_BSHD, pool_BND.to(q_BSHD.dtype), w_BSH, pool_BND.shape[1])
    seen_BS = torch.arange(tokens - queries + 1, tokens + 1, device=packed.device) - first_B[:, None]
    lengths_BS = torch.div(seen_BS.clamp(min=0), size, rounding_mode="floor").to(torch.int32)
    pools_BSN, _ = torch.ops.day0.topk_tokens(logits_BSN, self.index_topk // size, lengths_BS)
    chosen_BSK: torch.Tensor = torch.ops.day0.expand_pools(pools_BSN, first_B, size, tokens - queries, keys)[0]
    chosen_BSK = torch.where(attention_mask.bool()[..., None], chosen_BSK, -1)
    return chosen_BSK


def probe(module: nn.Module, generator: torch.Generator) -> Probe:
    """A prompt of which one sequence is padded, and two queries behind a cache."""
    children = {
        "wq_b": linear(module.wq_b, generator, RANK, HEADS * HEAD),
        "wk": linear(module.wk, generator, WIDTH, HEAD),
        "weights_proj": linear(module.weights_proj, generator, WIDTH, HEADS),
        "k_norm": norm(module.k_norm, generator, HEAD),
    }
    shapes = {"index_kpool_compress_ape": (POOL, HEAD), "index_kpool_compress_gate": (HEAD, WIDTH)}
    sizes = {"n_heads": HEADS, "head_dim": HEAD, "index_kpool": POOL, "index_topk": POOL * CHOSEN, "layer_idx": 0}
    made = small(module, generator, shapes, children, **sizes, softmax_scale=HEAD**-0.5)
    calls = []
    for queries, before in ((17, 0), (2, 15)):
        x_BSD, rank_BSR = draw(generator, 2, queries, WIDTH), draw(generator, 2, queries, RANK)
        mask_BS = torch.ones(2, queries, dtype=torch.bool)
        valid_BT1 = torch.ones(2, before, 1, dtype=torch.float64)
        (valid_BT1 if before else mask_BS)[0, :PADDED] = False
        kept = torch.cat((draw(generator, 2, before, 2 * HEAD), valid_BT1), dim=-1)
        calls.append((x_BSD, rank_BSR, mask_BS, _Cache(kept)))
    return Probe(module=made, calls=tuple(calls), settle=_chosen)


class _Cache:
    """Keeps what the models' own caches keep of it."""

    def __init__(self, kept: torch.Tensor) -> None:
        self.keys, self.layers = kept, [self]

    def update_indexer(self, packed: torch.Tensor, layer_idx: int) -> torch.Tensor:
        self.keys = torch.cat((self.keys.to(packed.dtype), packed), dim=1)
        return self.keys

    def get_seq_length(self) -> int:
        return self.keys.shape[1]


def _chosen(chosen_BSK: torch.Tensor) -> torch.Tensor:
    """Return the tokens of each row by rising number, in whatever order they were chosen."""
    return chosen_BSK.sort(dim=-1).values


ADAPTER = Adapter(
    title="indexer over pools of tokens: their keys, index logits, the choice, and the tokens of the chosen",
    operators=("day0::lightning_indexer", "day0::topk_tokens", "day0::pool_index_keys", "day0::expand_pools"),
    classes=("transformers.models.*Indexer",),
    candidates=candidates,
    probe=probe,
    gradients=False,
)

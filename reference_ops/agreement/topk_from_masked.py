"""The visible part of a selection against what transformers' attention really reads, and against a loop."""

from __future__ import annotations

import torch

from day0.reference_ops import topk_from_masked
from day0.reference_ops.agreement import _indexers
from day0.reference_ops.agreement._comparison import Comparison, worst

__all__ = ["COMPARISONS"]


def against_attention() -> float:
    """Tokens to which any weight goes, in attention that masks the future again after the choice."""
    from transformers.models.deepseek_v32.configuration_deepseek_v32 import DeepseekV32Config
    from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Attention

    config = DeepseekV32Config(
        hidden_size=32,
        q_lora_rank=16,
        kv_lora_rank=16,
        num_attention_heads=2,
        num_key_value_heads=2,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=8,
        index_n_heads=16,
        index_head_dim=8,
        index_topk=5,
    )
    config._attn_implementation = "eager"
    attention = _indexers.random_module(DeepseekV32Attention(config, 0), 9)
    chosen: list[torch.Tensor] = []
    handle = attention.indexer.register_forward_hook(lambda _module, _inputs, output: chosen.append(output))
    x_BSD = torch.randn(2, 13, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    angle_BSR = torch.randn(2, 13, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64).repeat(1, 1, 2)
    future_ST = torch.ones(13, 13, dtype=torch.bool).triu(1)
    mask_B1ST = torch.zeros(2, 1, 13, 13, dtype=torch.float64).masked_fill(future_ST, torch.finfo(torch.float64).min)
    with torch.no_grad():
        weight_BHST = attention(x_BSD, (angle_BSR.cos(), angle_BSR.sin()), mask_B1ST)[1]
    handle.remove()
    read_BST = (weight_BHST > 0).any(dim=1)
    theirs_BST = torch.where(read_BST, torch.arange(13), -1)
    mine_BSK, lengths_BS = topk_from_masked.reference(chosen[0], 0, 13)
    return max(_indexers.differing(mine_BSK, theirs_BST), worst((lengths_BS, read_BST.sum(dim=-1))))


def against_loop() -> float:
    """Every row by hand, with indices that no model gives."""
    first, keys = 3, 9
    shape = (3, 8, 11)
    indices_BSK = torch.randint(-4, 14, shape, generator=torch.Generator().manual_seed(3))
    expected_BSK, expected_BS = torch.full(shape, -1), torch.zeros(shape[:2])
    for b in range(shape[0]):
        for s in range(shape[1]):
            kept = [i for i in indices_BSK[b, s].tolist() if 0 <= i < min(keys, first + s + 1)]
            expected_BSK[b, s, : len(kept)] = torch.tensor(kept)
            expected_BS[b, s] = len(kept)
    mine_BSK, mine_BS = topk_from_masked.reference(indices_BSK, first, keys)
    return worst((mine_BSK, expected_BSK), (mine_BS, expected_BS))


COMPARISONS = (
    Comparison(
        operator=topk_from_masked.NAME,
        variant="as sets",
        against="deepseek_v32 DeepseekV32Attention, where its weights are not 0",
        distribution="transformers",
        limit=0.0,
        run=against_attention,
    ),
    Comparison(
        operator=topk_from_masked.NAME,
        variant="order and duplicates",
        against="a loop in Python",
        distribution="day0",
        limit=0.0,
        run=against_loop,
    ),
)

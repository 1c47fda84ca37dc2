"""Sparse latent attention against torch, against two models of transformers, and against the definition."""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch

from day0.reference_ops import sparse_mla_prefill
from day0.reference_ops.agreement._comparison import Comparison, worst
from day0.reference_ops.agreement._latent_rows import attention_with_sinks, random_indices, scaled_attention

__all__ = ["COMPARISONS"]

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, float]


def inputs(rows: int, chosen: int) -> Inputs:
    """Two requests of five queries, in float64."""
    generator = torch.Generator().manual_seed(4)
    q_BSHC = torch.randn(2, 5, 6, 48 + 16, generator=generator, dtype=torch.float64)
    kv_BTC = torch.randn(2, rows, 48 + 16, generator=generator, dtype=torch.float64)
    return q_BSHC, kv_BTC, random_indices(2, 5, chosen, rows, generator), 48, 0.2


def against_torch() -> float:
    """Fewer rows chosen than there are, then all of them: both sides of the switch to dense attention."""
    some, every = inputs(40, 11), inputs(17, 17)
    return worst(*((sparse_mla_prefill.reference(*args)[0], scaled_attention(*args)) for args in (some, every)))


def against_gpt_oss() -> float:
    """A sink for each head, some of them larger than every score."""
    args = inputs(30, 9)
    sink_H = torch.tensor([-3.0, 0.0, 1.5, 4.0, 20.0, -50.0], dtype=torch.float64)
    got = sparse_mla_prefill.reference(*args, None, sink_H)[0]
    return worst((got, attention_with_sinks(*args, sink_H)))


def against_deepseek() -> float:
    """The module expands latents to keys and values of each head; ours absorbs both projections. No rotation."""
    modeling: Any = importlib.import_module("transformers.models.deepseek_v32.modeling_deepseek_v32")

    generator = torch.Generator().manual_seed(5)
    config = modeling.DeepseekV32Config(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=24,
        kv_lora_rank=20,
        qk_nope_head_dim=12,
        qk_rope_head_dim=8,
        v_head_dim=10,
        index_topk=5,
    )
    config._attn_implementation = "sdpa"  # eager casts its softmax to float32
    module = modeling.DeepseekV32Attention(config, 0).double().eval()
    module.o_proj = torch.nn.Identity()
    indices_BSK = random_indices(2, 13, 5, 13, generator)

    class Chosen(torch.nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return indices_BSK

    module.indexer = Chosen()
    x_BSD = torch.randn(2, 13, 32, generator=generator, dtype=torch.float64)
    still = (torch.ones(2, 13, 8, dtype=torch.float64), torch.zeros(2, 13, 8, dtype=torch.float64))
    with torch.no_grad():
        theirs = module(x_BSD, still, torch.zeros(2, 1, 13, 13, dtype=torch.float64))[0].reshape(2, 13, 4, 10)
        q_BSHQ = module.q_b_proj(module.q_a_layernorm(module.q_a_proj(x_BSD))).reshape(2, 13, 4, 20)
        latent_BSL, rope_BSR = module.kv_a_proj_with_mqa(x_BSD).split((20, 8), dim=-1)
        kv_BTC = torch.cat((module.kv_a_layernorm(latent_BSL), rope_BSR), dim=-1)
        up_HNL, down_HVL = module.kv_b_proj.weight.reshape(4, 22, 20).split((12, 10), dim=1)
        absorbed = torch.einsum("bshn,hnl->bshl", q_BSHQ[..., :12], up_HNL)
        q_BSHC = torch.cat((absorbed, q_BSHQ[..., 12:]), dim=-1)
        out_BSHL = sparse_mla_prefill.reference(q_BSHC, kv_BTC, indices_BSK, 20, module.scaling)[0]
    return worst((torch.einsum("bshl,hvl->bshv", out_BSHL, down_HVL), theirs))


def against_definition() -> float:
    """Largest score, log-sum-exp and sink in Python's floats, with entries that do not count."""
    q, kv, indices, latent, scale = inputs(12, 7)
    indices[0, 0, 2], indices[0, 1, 0], indices[1, 4] = -1, 12, -1
    length = torch.tensor([[7, 3, 0, 1, 5], [7, 7, 2, 6, 7]], dtype=torch.int32)
    sink = torch.tensor([0.3, -2.0, 6.0, math.inf, -math.inf, 1.0])
    got = sparse_mla_prefill.reference(q, kv, indices, latent, scale, length, sink)
    out, largest, lse = torch.zeros_like(got[0]), torch.zeros_like(got[1]), torch.zeros_like(got[2])
    for b, s, h in ((b, s, h) for b in range(2) for s in range(5) for h in range(6)):
        listed = indices[b, s].tolist()[: int(length[b, s])]
        rows = [kv[b, index].tolist() for index in listed if 0 <= index < 12]
        query = q[b, s, h].tolist()
        scores = [scale * math.fsum(x * y for x, y in zip(query, row, strict=True)) for row in rows]
        largest[b, s, h] = max(scores, default=-math.inf)
        lse[b, s, h] = math.log(math.fsum(math.exp(one) for one in scores)) if scores else math.inf
        total = math.fsum(math.exp(one) for one in scores) + math.exp(min(float(sink[h]), 700.0))
        total = math.inf if sink[h] == math.inf else total
        for place in range(latent):
            parts = [math.exp(one) * row[place] for one, row in zip(scores, rows, strict=True)]
            out[b, s, h, place] = math.fsum(parts) / total if parts else 0.0
    return worst((got[0], out), (got[1], largest), (got[2], lse))


COMPARISONS = (
    Comparison(
        operator=sparse_mla_prefill.NAME,
        variant="sparse and dense",
        against="torch.nn.functional.scaled_dot_product_attention on gathered rows",
        distribution="torch",
        limit=1e-14,
        run=against_torch,
    ),
    Comparison(
        operator=sparse_mla_prefill.NAME,
        variant="sink",
        against="transformers.models.gpt_oss eager_attention_forward on gathered rows",
        distribution="transformers",
        limit=5e-15,
        run=against_gpt_oss,
    ),
    Comparison(
        operator=sparse_mla_prefill.NAME,
        variant="absorbed against expanded",
        against="transformers.models.deepseek_v32 DeepseekV32Attention with a given choice",
        distribution="transformers",
        limit=4e-15,
        run=against_deepseek,
    ),
    Comparison(
        operator=sparse_mla_prefill.NAME,
        variant="largest score, log-sum-exp, lengths, sink",
        against="the definition in Python's floats",
        distribution="day0",
        limit=3e-15,
        run=against_definition,
    ),
)

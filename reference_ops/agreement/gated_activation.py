"""Gated activations against the model code that defines them."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from day0.reference_ops import gated_activation
from day0.reference_ops.agreement._comparison import Comparison, error
from day0.reference_ops.agreement._modules import automodel, modeling

__all__ = ["COMPARISONS"]


def inputs() -> torch.Tensor:
    """Return [40, 24] float64, a third of it beyond the limits used below."""
    return 4.0 * torch.randn(40, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def against_gpt_oss() -> float:
    """Interleaved columns, limit 7 and a tighter one."""
    experts = modeling("gpt_oss").GptOssExperts
    gate_up, worst = inputs(), 0.0
    for limit in (7.0, 1.5):
        other = SimpleNamespace(alpha=1.702, limit=limit)
        mine = gated_activation.reference(gate_up, "swiglu_oai", True, limit)
        worst = max(worst, error(mine, experts._apply_gate(other, gate_up)))
    return worst


def against_deepseek_v4() -> float:
    """Halves, clamped before the activation."""
    other = SimpleNamespace(limit=2.5, act_fn=torch.nn.functional.silu)
    mine = gated_activation.reference(inputs(), "swiglu_clamped", limit=2.5)
    return error(mine, modeling("deepseek_v4").DeepseekV4Experts._apply_gate(other, inputs()))


def against_glm5_next() -> float:
    """The same rule in another model."""
    other = SimpleNamespace(swiglu_limit=2.5)
    mine = gated_activation.reference(inputs(), "swiglu_clamped", limit=2.5)
    return error(mine, modeling("glm5_next").Glm5NextTextExperts._apply_gate(other, inputs()))


def against_llama() -> float:
    """Llama's block with unit matrices as projections."""
    llama = modeling("llama")
    config = llama.LlamaConfig(hidden_size=24, intermediate_size=12, num_attention_heads=2, hidden_act="silu")
    block = llama.LlamaMLP(config).double()
    block.gate_proj.weight.data.copy_(torch.eye(24)[:12])
    block.up_proj.weight.data.copy_(torch.eye(24)[12:])
    block.down_proj.weight.data.copy_(torch.eye(24)[:, :12])
    with torch.no_grad():
        theirs = block(inputs())[:, :12]
    return error(gated_activation.reference(inputs(), "swiglu"), theirs)


def against_kimi_k3() -> float:
    """Both forms of the up half; theirs works in float32, so that is what is compared."""
    dense_situ = automodel("kimi_k3.situ").dense_situ
    gate_up, worst = inputs().float(), 0.0
    for beta, linear_beta in ((4.0, 25.0), (1.0, None)):
        mine = gated_activation.reference(gate_up, "situ", False, 0.0, beta, linear_beta or 0.0)
        worst = max(worst, error(mine, dense_situ(gate_up, beta, linear_beta)))
    return worst


COMPARISONS = tuple(
    Comparison(
        operator=gated_activation.NAME, variant=variant, against=against, distribution=name, limit=limit, run=run
    )
    for variant, against, name, limit, run in (
        ("swiglu_oai", "gpt_oss GptOssExperts._apply_gate", "transformers", 1e-15, against_gpt_oss),
        ("swiglu_clamped", "deepseek_v4 DeepseekV4Experts._apply_gate", "transformers", 1e-15, against_deepseek_v4),
        ("swiglu_clamped", "glm5_next Glm5NextTextExperts._apply_gate", "transformers", 1e-15, against_glm5_next),
        ("swiglu", "llama LlamaMLP", "transformers", 1e-15, against_llama),
        ("situ", "kimi_k3 dense_situ", "nemo-automodel", 2e-7, against_kimi_k3),
    )
)

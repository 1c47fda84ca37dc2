"""Routed experts against the expert loops of several models."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from day0.reference_ops import fused_experts
from day0.reference_ops.agreement._comparison import Comparison, error
from day0.reference_ops.agreement._modules import automodel, modeling

__all__ = ["COMPARISONS"]

TOKENS, WIDTH, EXPERTS, FEATURES, CHOICES = 9, 10, 7, 6, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """The first five arguments; expert 2 has no token, and some choices are dropped."""

    x_ND: torch.Tensor
    gate_up_EHD: torch.Tensor
    down_EDF: torch.Tensor
    weights_NK: torch.Tensor
    chosen_NK: torch.Tensor

    @property
    def args(self) -> tuple[Any, ...]:
        """As the operator takes them."""
        return self.x_ND, self.gate_up_EHD, self.down_EDF, self.weights_NK, self.chosen_NK

    @property
    def padded_NK(self) -> torch.Tensor:
        """The choices with number E for dropped ones, as transformers marks them."""
        return torch.where(self.chosen_NK < 0, EXPERTS, self.chosen_NK)


def mixture(dtype: torch.dtype = torch.float64, dropped: bool = True) -> Mixture:
    """Return the same values every time."""
    generator = torch.Generator().manual_seed(8)
    others = torch.tensor([0, 1, 3, 4, 5, 6])
    chosen_NK = others[torch.rand(TOKENS, len(others), generator=generator).argsort(dim=-1)[:, :CHOICES]]
    if dropped:
        chosen_NK[::4, 1] = -1
        chosen_NK[3] = -1
    return Mixture(
        x_ND=torch.randn(TOKENS, WIDTH, generator=generator, dtype=dtype),
        gate_up_EHD=torch.randn(EXPERTS, 2 * FEATURES, WIDTH, generator=generator, dtype=dtype),
        down_EDF=torch.randn(EXPERTS, WIDTH, FEATURES, generator=generator, dtype=dtype),
        weights_NK=torch.rand(TOKENS, CHOICES, generator=generator, dtype=dtype),
        chosen_NK=chosen_NK,
    )


def mine(mix: Mixture, *attributes: Any, **named: Any) -> torch.Tensor:
    """Call the reference."""
    return fused_experts.reference(*mix.args, *attributes, **named)


def theirs(module: Any, mix: Mixture, transposed: bool = False) -> torch.Tensor:
    """Put the weights into their module and call it."""
    module = module.double()
    with torch.no_grad():
        module.gate_up_proj.copy_(mix.gate_up_EHD.transpose(1, 2) if transposed else mix.gate_up_EHD)
        module.down_proj.copy_(mix.down_EDF.transpose(1, 2) if transposed else mix.down_EDF)
        out: torch.Tensor = module(mix.x_ND, mix.padded_NK, mix.weights_NK)
    return out


def config(kind: Any, **sizes: Any) -> Any:
    """Return a configuration that asks for the plain loop over experts."""
    made = kind(hidden_size=WIDTH, **sizes)
    made._experts_implementation = "eager"
    return made


def against_gpt_oss() -> float:
    """Interleaved columns, biases, clamps that bite; its loop knows no dropped choice."""
    gpt, generator = modeling("gpt_oss"), torch.Generator().manual_seed(3)
    sizes = {"intermediate_size": FEATURES, "num_local_experts": EXPERTS, "swiglu_limit": 1.5}
    module = gpt.GptOssExperts(config(gpt.GptOssConfig, **sizes))
    biases = [torch.randn(EXPERTS, size, generator=generator, dtype=torch.float64) for size in (2 * FEATURES, WIDTH)]
    module.gate_up_proj_bias.data, module.down_proj_bias.data = biases
    mix = mixture(dropped=False)
    return error(mine(mix, "swiglu_oai", True, False, 1.5, 0.0, 0.0, *biases), theirs(module, mix, transposed=True))


def against_deepseek_v3() -> float:
    """Plain SwiGLU, halves, dropped choices."""
    deepseek = modeling("deepseek_v3")
    sizes = {"moe_intermediate_size": FEATURES, "n_routed_experts": EXPERTS}
    module = deepseek.DeepseekV3Experts(config(deepseek.DeepseekV3Config, **sizes))
    return error(mine(mixture(), "swiglu"), theirs(module, mixture()))


def against_deepseek_v4() -> float:
    """Clamped SwiGLU, dropped choices."""
    deepseek = modeling("deepseek_v4")
    sizes = {"moe_intermediate_size": FEATURES, "n_routed_experts": EXPERTS, "swiglu_limit": 1.5}
    module = deepseek.DeepseekV4Experts(config(deepseek.DeepseekV4Config, **sizes))
    return error(mine(mixture(), "swiglu_clamped", limit=1.5), theirs(module, mixture()))


def against_mixtral() -> float:
    """Plain SwiGLU; its checkpoint names are w1, w3, w2."""
    mixtral = modeling("mixtral")
    sizes = {"intermediate_size": FEATURES, "num_local_experts": EXPERTS}
    module = mixtral.MixtralExperts(config(mixtral.MixtralConfig, **sizes))
    return error(mine(mixture(), "swiglu"), theirs(module, mixture()))


def against_kimi_k3_in(dtype: torch.dtype) -> float:
    """Call the method with no more of its object than it reads."""
    model = automodel("kimi_k3.model")
    mix = mixture(dtype, dropped=False)
    other = SimpleNamespace(
        n_routed_experts=EXPERTS,
        _situ=model.SituAndMul(beta=4.0, linear_beta=25.0),
        experts=SimpleNamespace(
            gate_and_up_projs=mix.gate_up_EHD.transpose(1, 2), down_projs=mix.down_EDF.transpose(1, 2)
        ),
    )
    out = model.KimiK3MoE._forward_reference_order(other, mix.x_ND, mix.chosen_NK, mix.weights_NK.float())
    return error(mine(mix, "situ", beta=4.0, linear_beta=25.0), out)


def against_kimi_k3() -> float:
    """The checkpoint's own order; its activation works in float32."""
    return against_kimi_k3_in(torch.float32)


def against_kimi_k3_in_bfloat16() -> float:
    """Theirs rounds the gate/up product and the activation too."""
    return against_kimi_k3_in(torch.bfloat16)


COMPARISONS = tuple(
    Comparison(operator=fused_experts.NAME, variant=variant, against=against, distribution=name, limit=limit, run=run)
    for variant, against, name, limit, run in (
        ("swiglu_oai, biases", "gpt_oss GptOssExperts", "transformers", 2e-15, against_gpt_oss),
        ("swiglu", "deepseek_v3 DeepseekV3Experts", "transformers", 2e-15, against_deepseek_v3),
        ("swiglu_clamped", "deepseek_v4 DeepseekV4Experts", "transformers", 2e-15, against_deepseek_v4),
        ("swiglu", "mixtral MixtralExperts", "transformers", 2e-15, against_mixtral),
        ("situ", "kimi_k3 KimiK3MoE._forward_reference_order", "nemo-automodel", 1e-6, against_kimi_k3),
        (
            "situ, bfloat16",
            "kimi_k3 KimiK3MoE._forward_reference_order",
            "nemo-automodel",
            2e-2,
            against_kimi_k3_in_bfloat16,
        ),
    )
)

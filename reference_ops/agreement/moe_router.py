"""Routing against the routers of several models, as pairs of expert and weight: theirs come in any order."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from day0.reference_ops import moe_router
from day0.reference_ops.agreement._comparison import Comparison, worst
from day0.reference_ops.agreement._modules import automodel, modeling

__all__ = ["COMPARISONS"]

TOKENS, EXPERTS, TOPK = 40, 24, 5


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits [N, E] and a bias [E] that is mostly negative, so that a mask of 0 would win."""
    generator = torch.Generator().manual_seed(6)
    logits_NE = torch.randn(TOKENS, EXPERTS, generator=generator).to(dtype)
    return logits_NE, (torch.randn(EXPERTS, generator=generator) - 1.5).to(dtype)


def compared(mine: tuple[torch.Tensor, torch.Tensor], weights: torch.Tensor, chosen: torch.Tensor) -> float:
    """Sort both by expert; another choice is an infinite error."""
    pairs = [(one[1].argsort(dim=-1), *one) for one in (mine, (weights, chosen))]
    (weights_a, chosen_a), (weights_b, chosen_b) = ((w.gather(-1, o), c.gather(-1, o)) for o, w, c in pairs)
    return worst((weights_a, weights_b)) if torch.equal(chosen_a, chosen_b) else float("inf")


def against_router(name: str, router: str, groups: int, kept: int, normalise: bool) -> float:
    """Call a router of DeepSeek-V3's kind; they work in float32. The identity as weight makes logits of states."""
    logits_NE, bias_E = inputs(torch.float32)
    config = SimpleNamespace(
        num_experts_per_tok=TOPK,
        num_local_experts=EXPERTS,
        hidden_size=EXPERTS,
        routed_scaling_factor=2.5,
        n_group=groups,
        topk_group=kept,
        norm_topk_prob=normalise,
    )
    theirs = getattr(modeling(name), router)(config)
    theirs.weight.data.copy_(torch.eye(EXPERTS))
    theirs.e_score_correction_bias.copy_(bias_E)
    with torch.no_grad():
        _, weights, chosen = theirs(logits_NE)
    mine = moe_router.reference(logits_NE, bias_E, TOPK, 2.5, groups, kept, "sigmoid", normalise)
    return compared(mine, weights, chosen)


def against_deepseek_v3() -> float:
    """One group, and several with some kept."""
    settings = ((1, 1, True), (8, 4, True), (4, 2, False), (6, 6, True))
    return max(against_router("deepseek_v3", "DeepseekV3TopkRouter", *setting) for setting in settings)


def against_glm5_next() -> float:
    """Groups."""
    return against_router("glm5_next", "Glm5NextTextTopkRouter", 4, 2, True)


def against_kimi_linear() -> float:
    """Groups."""
    return against_router("kimi_linear", "KimiLinearTopkRouter", 4, 2, True)


def against_deepseek_v4() -> float:
    """The root of softplus, in float64."""
    deepseek = modeling("deepseek_v4")
    config = deepseek.DeepseekV4Config(
        hidden_size=EXPERTS, n_routed_experts=EXPERTS, num_experts_per_tok=TOPK, routed_scaling_factor=1.5
    )
    theirs = deepseek.DeepseekV4TopKRouter(config).double()
    logits_NE, bias_E = inputs(torch.float64)
    theirs.weight.data.copy_(torch.eye(EXPERTS))
    theirs.e_score_correction_bias.copy_(bias_E)
    with torch.no_grad():
        _, weights, chosen = theirs(4.0 * logits_NE)
    return compared(moe_router.reference(4.0 * logits_NE, bias_E, TOPK, 1.5, score="sqrtsoftplus"), weights, chosen)


def against_gpt_oss() -> float:
    """Softmax over the chosen, in float64."""
    gpt = modeling("gpt_oss")
    config = gpt.GptOssConfig(hidden_size=EXPERTS, num_local_experts=EXPERTS, num_experts_per_tok=TOPK)
    theirs = gpt.GptOssTopKRouter(config).double()
    logits_NE, bias_E = inputs(torch.float64)
    theirs.weight.data.copy_(torch.eye(EXPERTS))
    with torch.no_grad():
        _, weights, chosen = theirs(logits_NE)
    # A bias that is not 0 has to change nothing.
    return compared(moe_router.reference(logits_NE, bias_E, TOPK, 1.0, score="softmax_topk"), weights, chosen)


def against_kimi_k3() -> float:
    """K3's gate, with groups and without."""
    gate = automodel("kimi_k3.model").KimiK3Gate
    logits_NE, bias_E = inputs(torch.float32)
    errors = []
    for groups, kept in ((1, 1), (4, 2)):
        other = SimpleNamespace(
            weight=torch.eye(EXPERTS),
            score_func="sigmoid_with_bias",
            n_groups=groups,
            topk_groups=kept,
            topk=TOPK,
            norm_topk_prob=True,
            route_scale=1.0,
            _local_score_correction_bias=lambda: bias_E,
        )
        weights, chosen, _ = gate.forward(other, logits_NE, torch.ones(TOKENS, dtype=torch.bool))
        errors.append(compared(moe_router.reference(logits_NE, bias_E, TOPK, 1.0, groups, kept), weights, chosen))
    return max(errors)


COMPARISONS = tuple(
    Comparison(operator=moe_router.NAME, variant=variant, against=against, distribution=name, limit=limit, run=run)
    for variant, against, name, limit, run in (
        ("sigmoid, groups", "deepseek_v3 DeepseekV3TopkRouter", "transformers", 1e-6, against_deepseek_v3),
        ("sigmoid, groups", "glm5_next Glm5NextTextTopkRouter", "transformers", 1e-6, against_glm5_next),
        ("sigmoid, groups", "kimi_linear KimiLinearTopkRouter", "transformers", 1e-6, against_kimi_linear),
        ("sigmoid, groups", "kimi_k3 KimiK3Gate", "nemo-automodel", 1e-6, against_kimi_k3),
        ("sqrtsoftplus", "deepseek_v4 DeepseekV4TopKRouter", "transformers", 1e-15, against_deepseek_v4),
        ("softmax_topk", "gpt_oss GptOssTopKRouter", "transformers", 1e-15, against_gpt_oss),
    )
)

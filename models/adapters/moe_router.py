"""Routers that score experts with a sigmoid and correct the choice by a bias, in groups (DeepSeek-V3, GLM, Kimi Linear).

Shape suffixes: N tokens, D width, E experts, K chosen experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from day0.models.adapters._adapter import Adapter, Candidate, Forward, Probe, Refused, needs
from day0.models.adapters._routing import probe_routing, takes_bias

__all__ = ["ADAPTER"]

BIAS = "e_score_correction_bias"
SCALES = ("routed_scaling_factor", "router_scaling_factor")


def candidates(module: nn.Module) -> Sequence[Candidate]:
    """Sigmoid or the root of softplus, logits and weights wide or narrow: the proof sees what the module does not say."""
    needs(module, "weight", "top_k")
    if getattr(module, BIAS, None) is None and not takes_bias(module):
        raise Refused(f"it has no {BIAS}: its scores are none of those that day0::moe_router corrects")
    scale = next((float(one) for name in SCALES if isinstance(one := getattr(module, name, None), (int, float))), 1.0)
    normalise = bool(getattr(module, "norm_topk_prob", True))
    return [
        Candidate(
            text=f"{score}{'' if normalise else ', not normalised'}, {'wide' if wide else 'narrow'} logits, "
            f"{'wide' if wide_weights else 'narrow'} weights",
            forward=_forward(score, normalise, scale, wide, wide_weights),
        )
        for score in ("sigmoid", "sqrtsoftplus")
        for wide in (True, False)
        for wide_weights in (True, False)
    ]


def _forward(score: str, normalise: bool, scale: float, wide: bool, wide_weights: bool) -> Forward:
    def forward(
        self: Any, hidden_states: torch.Tensor, e_score_correction_bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x_ND = hidden_states.reshape(-1, self.weight.shape[-1])
        if wide:
            logits_NE = F.linear(x_ND.float(), self.weight.float())
        else:
            logits_NE = F.linear(x_ND.to(self.weight.dtype), self.weight)
        bias_E = self.e_score_correction_bias if e_score_correction_bias is None else e_score_correction_bias
        groups, kept = int(getattr(self, "num_group", None) or 1), int(getattr(self, "topk_group", None) or 1)
        weights_NK, chosen_NK = torch.ops.day0.moe_router(
            logits_NE, bias_E, self.top_k, scale, groups, kept, score, normalise
        )
        return logits_NE, weights_NK if wide_weights else weights_NK.to(x_ND.dtype), chosen_NK

    return forward


def probe(module: nn.Module, generator: torch.Generator) -> Probe:
    """Tokens with different choices, and a bias that decides some of them."""
    return probe_routing(module, generator)


ADAPTER = Adapter(
    title="router with corrected scores, limited to the best groups",
    operators=("day0::moe_router",),
    classes=("transformers.models.*TopkRouter", "transformers.models.*TopKRouter"),
    candidates=candidates,
    probe=probe,
)

"""Routers whose weights are a softmax over the chosen experts (gpt-oss, Qwen3-MoE, Mixtral, Granite).

A softmax over all experts whose chosen part is divided by its sum is the same.

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


def candidates(module: nn.Module) -> Sequence[Candidate]:
    """Logits in the module's dtype or wide, weights in the dtype of the tokens or wide."""
    needs(module, "weight", "top_k")
    if getattr(module, "norm_topk_prob", True) is False:
        raise Refused("norm_topk_prob is false, and softmax_topk of day0::moe_router sums to 1")
    if getattr(module, "e_score_correction_bias", None) is not None or takes_bias(module):
        raise Refused("it corrects its scores by a bias, which softmax_topk of day0::moe_router does not read")
    scale = float(getattr(module, "routed_scaling_factor", 1.0))
    return [
        Candidate(
            text=f"logits {'wide' if wide else 'narrow'}, rows {'widened' if late else 'as they are'}, "
            f"weights {'wide' if wide_weights else 'narrow'}",
            forward=_forward(wide, late, wide_weights, scale),
        )
        for wide in (False, True)
        for late in (False, True)
        for wide_weights in (False, True)
    ]


def _forward(wide: bool, late: bool, wide_weights: bool, scale: float) -> Forward:
    def forward(self: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x_ND = hidden_states.reshape(-1, self.weight.shape[-1])
        bias_E = getattr(self, "bias", None)
        if wide and not late:
            logits_NE = F.linear(x_ND.float(), self.weight.float(), None if bias_E is None else bias_E.float())
        else:
            logits_NE = F.linear(x_ND, self.weight, bias_E)
        if late:
            logits_NE = logits_NE.float()
        unread_E = logits_NE.new_zeros(logits_NE.shape[-1])
        weights_NK, chosen_NK = torch.ops.day0.moe_router(
            logits_NE, unread_E, self.top_k, scale, 1, 1, "softmax_topk", True
        )
        return logits_NE, weights_NK if wide_weights else weights_NK.to(x_ND.dtype), chosen_NK

    return forward


def probe(module: nn.Module, generator: torch.Generator) -> Probe:
    """Tokens with different choices."""
    return probe_routing(module, generator)


ADAPTER = Adapter(
    title="router whose weights are a softmax over the chosen experts",
    operators=("day0::moe_router",),
    classes=("transformers.models.*TopKRouter", "transformers.models.*TopkRouter"),
    candidates=candidates,
    probe=probe,
)

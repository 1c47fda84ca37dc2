"""Routed experts that are stacked in two parameters (gpt-oss, DeepSeek, Qwen3-MoE, Mixtral and some fifty others).

Shape suffixes: N tokens, D width, E experts, F hidden features, K choices of a token.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from day0.models.adapters._activations import activation_kinds
from day0.models.adapters._adapter import Adapter, Candidate, Forward, Probe, Refused, needs
from day0.models.adapters._small import draw, small

__all__ = ["ADAPTER"]

EXPERTS, WIDTH, FEATURES, TOKENS, CHOICES = 5, 12, 10, 9, 2


def candidates(module: nn.Module) -> Sequence[Candidate]:
    """The kinds of gate that its attributes allow, in halves or alternating."""
    needs(module, "gate_up_proj", "down_proj", "num_experts")
    if not all(isinstance(getattr(module, name), torch.Tensor) for name in ("gate_up_proj", "down_proj")):
        raise Refused("its projections are modules, not stacked weights")
    if getattr(module, "has_post_expert_norm", False):
        raise Refused("it normalises behind each expert, which day0::fused_experts does not")
    return [
        Candidate(text=f"{text}{', interleaved' if interleaved else ''}", forward=_forward(kind, limit, interleaved))
        for text, kind, limit in activation_kinds(module)
        for interleaved in (not getattr(module, "is_concatenated", True), getattr(module, "is_concatenated", True))
    ]


def _forward(kind: str, limit: float, interleaved: bool) -> Forward:
    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor | None = None,
        top_k_weights: torch.Tensor | None = None,
        *,
        router_indices: torch.Tensor | None = None,
        routing_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        chosen_NK = top_k_index if top_k_index is not None else router_indices
        weights_NK = top_k_weights if top_k_weights is not None else routing_weights
        gate_up_EHD, down_EDF = self.gate_up_proj, self.down_proj
        if _transposed(self):
            gate_up_EHD, down_EDF = gate_up_EHD.transpose(1, 2), down_EDF.transpose(1, 2)
        biases = getattr(self, "gate_up_proj_bias", None), getattr(self, "down_proj_bias", None)
        y_ND: torch.Tensor = torch.ops.day0.fused_experts(
            hidden_states, gate_up_EHD, down_EDF, weights_NK, chosen_NK,
            kind, interleaved, False, limit, 0.0, 0.0, *biases,
        )  # fmt: skip
        return y_ND

    return forward


def _transposed(module: Any) -> bool:
    return bool(getattr(module, "is_transposed", False))


def probe(module: nn.Module, generator: torch.Generator) -> Probe:
    """A few tokens, an expert without any, values beyond every limit."""
    shapes = {
        "gate_up_proj": (EXPERTS, 2 * FEATURES, WIDTH),
        "down_proj": (EXPERTS, WIDTH, FEATURES),
        "gate_up_proj_bias": (EXPERTS, 2 * FEATURES),
        "down_proj_bias": (EXPERTS, WIDTH),
    }
    if _transposed(module):
        for name in ("gate_up_proj", "down_proj"):
            shapes[name] = (EXPERTS, *reversed(shapes[name][1:]))
    changed: dict[str, Any] = {"num_experts": EXPERTS}
    if hasattr(module, "config"):
        # The plain loop over experts: others are kernels for some devices and dtypes.
        changed["config"] = copy.copy(module.config)
        changed["config"]._experts_implementation = "eager"
    for name, value in (("hidden_dim", WIDTH), ("hidden_size", WIDTH), ("intermediate_dim", FEATURES)):
        if hasattr(module, name):
            changed[name] = value
    made = small(module, generator, shapes, dict(module.named_children()), **changed)
    for parameter in made.parameters():
        parameter.data = 0.3 * parameter.data
    chosen_NK = torch.rand(TOKENS, EXPERTS - 1, generator=generator).argsort(dim=-1)[:, :CHOICES]
    weights_NK = torch.rand(TOKENS, CHOICES, generator=generator, dtype=torch.float64)
    x_ND = draw(generator, TOKENS, WIDTH)
    return Probe(module=made, calls=((x_ND, chosen_NK, weights_NK), (20.0 * x_ND, chosen_NK, weights_NK)))


ADAPTER = Adapter(
    title="routed experts, stacked: projections, gate and weighted sum",
    operators=("day0::fused_experts",),
    classes=("transformers.models.*Experts",),
    candidates=candidates,
    probe=probe,
)

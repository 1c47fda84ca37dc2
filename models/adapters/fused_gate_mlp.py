"""Feed-forward blocks whose gate and up half come from one projection (Phi-3, GLM-4, Granite).

Shape suffixes: X any leading dimensions, D width, F hidden features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from day0.models.adapters._activations import activation_kinds
from day0.models.adapters._adapter import Adapter, Candidate, Forward, Probe, needs
from day0.models.adapters._small import draw, linear, small

__all__ = ["ADAPTER"]

WIDTH, FEATURES = 16, 24
NAMES = (("gate_up_proj", "down_proj"), ("input_linear", "output_linear"))


def names_of(module: nn.Module) -> tuple[str, str]:
    """Return what a module calls its two projections. Raises Refused for one without them."""
    for names in NAMES:
        if all(isinstance(getattr(module, name, None), nn.Module) for name in names):
            return names
    needs(module, *NAMES[0])
    return NAMES[0]


def candidates(module: nn.Module) -> Sequence[Candidate]:
    """The kinds of gate that its activation and its attributes allow, in halves or alternating."""
    names = names_of(module)
    return [
        Candidate(
            text=f"{text}{', interleaved' if interleaved else ''}", forward=_forward(names, kind, limit, interleaved)
        )
        for text, kind, limit in activation_kinds(module)
        for interleaved in (False, True)
    ]


def _forward(names: tuple[str, str], kind: str, limit: float, interleaved: bool) -> Forward:
    both, down = names

    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        active_XF = torch.ops.day0.gated_activation(getattr(self, both)(hidden_states), kind, interleaved, limit)
        y_XD: torch.Tensor = getattr(self, down)(active_XF)
        return y_XD

    return forward


def probe(module: nn.Module, generator: torch.Generator) -> Probe:
    """Values of usual size, and some beyond every limit."""
    both, down = names_of(module)
    children = {name: child for name, child in module.named_children() if name not in (both, down)}
    children[both] = linear(getattr(module, both), generator, WIDTH, 2 * FEATURES)
    children[down] = linear(getattr(module, down), generator, FEATURES, WIDTH)
    x_XD = draw(generator, 2, 5, WIDTH)
    return Probe(module=small(module, generator, {}, children), calls=((x_XD,), (20.0 * x_XD,)))


ADAPTER = Adapter(
    title="feed-forward block whose gate and up half are one projection",
    operators=("day0::gated_activation",),
    classes=("transformers.models.*MLP",),
    candidates=candidates,
    probe=probe,
)

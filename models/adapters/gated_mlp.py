"""Feed-forward blocks with a gate in three projections: gate_proj, up_proj, down_proj (Llama, Qwen, DeepSeek, GLM-5).

Shape suffixes: X any leading dimensions, D width, F hidden features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from day0.models.adapters._activations import activation_kinds
from day0.models.adapters._adapter import Adapter, Candidate, Forward, Probe, Refused, needs
from day0.models.adapters._small import draw, linear, small

__all__ = ["ADAPTER"]

WIDTH, FEATURES = 16, 24
NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
"""Gate, up and down, as models call them."""


def names_of(module: nn.Module) -> tuple[str, str, str]:
    """Return what a module calls its three projections. Raises Refused for one without them."""
    for names in NAMES:
        if all(isinstance(getattr(module, name, None), nn.Module) for name in names):
            return names
    needs(module, *NAMES[0])
    raise Refused(f"one of {', '.join(NAMES[0])} is no module")


def candidates(module: nn.Module) -> Sequence[Candidate]:
    """The kinds of gate that its activation and its attributes allow."""
    names = names_of(module)
    return [
        Candidate(text=text, forward=_forward(names, kind, limit)) for text, kind, limit in activation_kinds(module)
    ]


def _forward(names: tuple[str, str, str], kind: str, limit: float) -> Forward:
    gate, up, down = names

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        gate_up_X2F = torch.cat((getattr(self, gate)(x), getattr(self, up)(x)), dim=-1)
        active_XF = torch.ops.day0.gated_activation(gate_up_X2F, kind, False, limit)
        y_XD: torch.Tensor = getattr(self, down)(active_XF)
        return y_XD

    return forward


def probe(module: nn.Module, generator: torch.Generator) -> Probe:
    """Values of usual size, and some beyond every limit."""
    gate, up, down = names_of(module)
    children = {name: child for name, child in module.named_children() if name not in (gate, up, down)}
    children |= {name: linear(getattr(module, name), generator, WIDTH, FEATURES) for name in (gate, up)}
    children[down] = linear(getattr(module, down), generator, FEATURES, WIDTH)
    x_XD = draw(generator, 2, 5, WIDTH)
    return Probe(module=small(module, generator, {}, children), calls=((x_XD,), (20.0 * x_XD,)))


ADAPTER = Adapter(
    title="feed-forward block with a gate, in three projections",
    operators=("day0::gated_activation",),
    classes=("transformers.models.*MLP", "transformers.models.*FeedForward"),
    candidates=candidates,
    probe=probe,
)

"""Root mean square norms: Llama's, Qwen's, DeepSeek's, GLM's, gpt-oss' and Gemma's, with their weight and order.

Shape suffixes: X any leading dimensions, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from day0.models.adapters._adapter import Adapter, Candidate, Forward, Probe, Refused
from day0.models.adapters._small import draw, small

__all__ = ["ADAPTER"]

WIDTH = 24


def candidates(module: nn.Module) -> Sequence[Candidate]:
    """Weight as it is or as an offset from 1, and both orders of rounding: their code alone says which."""
    eps = _eps(module)
    if getattr(module, "weight", None) is None:
        return [_candidate(eps, None, round_first) for round_first in (True, False)]
    return [_candidate(eps, offset, round_first) for offset in (0.0, 1.0) for round_first in (True, False)]


def _eps(module: nn.Module) -> float:
    for name in ("variance_epsilon", "eps", "epsilon"):
        eps = getattr(module, name, None)
        if isinstance(eps, (int, float)):
            return float(eps)
    raise Refused("it has no variance_epsilon and no eps")


def _candidate(eps: float, offset: float | None, round_first: bool) -> Candidate:
    text = f"weight {'of ones' if offset is None else 'offset 1' if offset else 'as it is'}, "
    return Candidate(
        text=f"{text}rounded {'first' if round_first else 'last'}", forward=_forward(eps, offset, round_first)
    )


def _forward(eps: float, offset: float | None, round_first: bool) -> Forward:
    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        x_XD = hidden_states
        if offset is None:
            weight_D = x_XD.new_ones(x_XD.shape[-1])
        elif offset:
            # In float32 as theirs does it: 1 + w has fewer digits in two bytes.
            weight_D = offset + self.weight.to(torch.float64 if x_XD.dtype == torch.float64 else torch.float32)
        else:
            weight_D = self.weight
        normed_XD: torch.Tensor = torch.ops.day0.rms_norm(x_XD, weight_D, eps, round_first)
        return normed_XD

    return forward


def probe(module: nn.Module, generator: torch.Generator) -> Probe:
    """Rows of usual size, tiny ones that eps decides, and large ones."""
    made = small(module, generator, dict.fromkeys(module._parameters, (WIDTH,)))
    x_XD = draw(generator, 3, 5, WIDTH)
    return Probe(module=made, calls=((x_XD,), (1e-3 * x_XD,), (100.0 * x_XD,)))


ADAPTER = Adapter(
    title="root mean square norm, weight as it is or offset by 1, either order of rounding",
    operators=("day0::rms_norm",),
    classes=("transformers.models.*RMSNorm",),
    candidates=candidates,
    probe=probe,
)

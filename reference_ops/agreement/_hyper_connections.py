"""Hyper-connection modules of transformers with random weights, and the same weights for our contracts."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch

__all__ = ["EPS", "HIDDEN", "ITERATIONS", "NORM_EPS", "STREAMS", "made", "parameters", "random_streams"]

STREAMS, HIDDEN, NORM_EPS, EPS, ITERATIONS = 4, 12, 1e-5, 1e-6, 20
CLASSES = {"glm5_next": "Glm5NextTextHyperConnection", "deepseek_v4": "DeepseekV4HyperConnection"}


def made(model: str, seed: int, iterations: int = ITERATIONS) -> Any:
    """Return the module in float64."""
    config = SimpleNamespace(
        hc_mult=STREAMS, hidden_size=HIDDEN, rms_norm_eps=NORM_EPS, hc_eps=EPS, hc_sinkhorn_iters=iterations
    )
    modeling = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    module = getattr(modeling, CLASSES[model])(config).double()
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(values / parameter.shape[-1] ** 0.5)
    return module


def parameters(module: Any, iterations: int = ITERATIONS) -> tuple[Any, ...]:
    """Return what our contract takes after the streams."""
    return module.fn.detach(), module.base.detach(), module.scale.detach(), NORM_EPS, EPS, iterations


def random_streams(seed: int) -> torch.Tensor:
    """Return streams [B, S, n, D] in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, STREAMS, HIDDEN, generator=generator, dtype=torch.float64)

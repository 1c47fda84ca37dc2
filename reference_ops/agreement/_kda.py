"""Arguments for comparisons of Kimi Delta Attention, and what other people's functions are called with."""

from __future__ import annotations

import torch

from day0.reference_ops import _kda

__all__ = ["TOKENS", "long_arguments", "prepared"]

TOKENS = 48


def long_arguments(seed: int, lowest: float, tokens: int = TOKENS) -> tuple[torch.Tensor, ...]:
    """Return q, k, v, g, beta and a state [K, V] in float64, g from `lowest` to 0, with K and V apart."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    decay_BSHK = lowest * torch.rand(2, tokens, 3, 8, generator=generator, dtype=torch.float64)
    beta_BSH = torch.rand(2, tokens, 3, generator=generator, dtype=torch.float64)
    heads = (2, tokens, 3)
    return normal(*heads, 8), normal(*heads, 8), normal(*heads, 12), decay_BSHK, beta_BSH, normal(2, 3, 8, 12)


def prepared(args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return the arguments for functions that do not normalise queries and keys themselves."""
    return (_kda.normalised(args[0]), _kda.normalised(args[1]), *args[2:])

"""Minimal calls of the operators of new models. Sizes are apart from each other, so that mistakes do not cancel."""

from __future__ import annotations

from typing import Any

import torch

from day0.devices.faults._tools import seeded

__all__ = [
    "attention",
    "bank",
    "cached",
    "delta",
    "experts",
    "gate",
    "gather_after_write",
    "images",
    "indexer",
    "norm",
    "patches",
    "pools",
    "residual",
    "rope",
    "router",
    "short",
    "transform",
]


def rope(device: torch.device) -> Any:
    """Four of six values of a head, the first ones, by halves."""
    angle = torch.tensor([[[0.1, 0.7], [1.1, 2.3]]])
    given = (seeded(1, 2, 1, 6), angle.cos(), angle.sin())
    return torch.ops.day0.rope(*(one.to(device) for one in given), "half", 0)


def transform(device: torch.device) -> Any:
    """One key."""
    return torch.ops.day0.hadamard(torch.tensor([[[1.0, 0.0, 0.0, 0.0]]], device=device))


def indexer(device: torch.device) -> Any:
    """Two heads with weights of both signs."""
    w = torch.tensor([[[1.0, -0.5]]])
    given = (seeded(1, 1, 2, 4), seeded(1, 3, 4, seed=1), w)
    return torch.ops.day0.lightning_indexer(*(one.to(device) for one in given), 2)


def delta(*, padded: bool = False) -> Any:
    """Two tokens with K = 2 and V = 3, the last one padding if asked for."""

    def run(device: torch.device) -> Any:
        g, beta = -torch.rand(1, 2, 1, 2, generator=torch.Generator().manual_seed(1)), torch.full((1, 2, 1), 0.5)
        if padded:
            g[:, 1], beta[:, 1] = 0.0, 0.0
        keys, values, state = seeded(1, 2, 1, 2), seeded(1, 2, 1, 3, seed=2), seeded(1, 1, 2, 3, seed=3)
        given = (keys, keys.flip(-1), values, g, beta, state)
        return list(torch.ops.day0.kda_recurrent(*(one.to(device) for one in given)))

    return run


def gate(device: torch.device) -> Any:
    """The bounded gate."""
    given = (seeded(1, 1, 2, 3), torch.tensor([0.1, 0.5]), torch.zeros(2, 3))
    return torch.ops.day0.kda_gate(*(one.to(device) for one in given), -5.0)


def short(device: torch.device) -> Any:
    """One token behind three that were kept."""
    given = (seeded(1, 1, 2), seeded(2, 4, seed=1), seeded(1, 3, 2, seed=2))
    return list(torch.ops.day0.short_conv(*(one.to(device) for one in given)))


def attention(*, sink: bool = False) -> Any:
    """Two queries of three heads over four rows."""

    def run(device: torch.device) -> Any:
        indices = torch.tensor([[[0, 1], [2, 3]]], dtype=torch.int32)
        given = [one.to(device) for one in (seeded(1, 2, 3, 5), seeded(1, 4, 5, seed=1), indices)]
        sinks = torch.tensor([0.5, 1.0, -1.0], device=device) if sink else None
        return list(torch.ops.day0.sparse_mla_prefill(*given, 4, 0.5, None, sinks))

    return run


def cached(device: torch.device) -> Any:
    """The same from pages of two rows."""
    indices = torch.tensor([[[0, 1], [2, 3]]], dtype=torch.int32)
    given = (seeded(1, 2, 3, 5), seeded(2, 2, 5, seed=1), indices)
    return list(torch.ops.day0.sparse_mla_decode(*(one.to(device) for one in given), 4, 0.5))


def gather_after_write(*, again: bool = False) -> Any:
    """Write two rows of a page and read them, after another reading if asked for."""

    def run(device: torch.device) -> Any:
        pages, table = torch.zeros(1, 2, 3, device=device), torch.zeros(1, 1, dtype=torch.int32, device=device)
        lengths, slots = torch.tensor([2], dtype=torch.int32, device=device), torch.tensor([0, 1], device=device)
        if again:
            torch.ops.day0.paged_kv_gather(pages, table, lengths, 2, 3, 2, torch.float32)
        torch.ops.day0.paged_kv_write(pages, seeded(2, 3).to(device), slots, 2)
        return torch.ops.day0.paged_kv_gather(pages, table, lengths, 2, 3, 2, torch.float32)

    return run


def router(device: torch.device) -> Any:
    """Logits that bfloat16 cannot tell apart, and a bias."""
    logits, bias = torch.tensor([[1.001, 1.002, -2.0, 3.0]]), torch.tensor([0.0, 0.0, 0.0, 0.5])
    return list(torch.ops.day0.moe_router(logits.to(device), bias.to(device), 2, 1.0))


def experts(device: torch.device) -> Any:
    """Three tokens, the last one padding, two of three experts each."""
    chosen = torch.tensor([[0, 2], [1, 0], [-1, -1]])
    weights = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.5, 0.5]])
    given = (seeded(3, 4), seeded(3, 6, 4, seed=1), seeded(3, 4, 3, seed=2), weights, chosen)
    return torch.ops.day0.fused_experts(*(one.to(device) for one in given), "swiglu")


def bank(device: torch.device) -> Any:
    """Two snapshots and the prefix."""
    one, two, prefix = (seeded(1, 1, 3, seed=number).to(device) for number in range(3))
    return torch.ops.day0.attention_residual(
        [one, two], prefix, torch.ones(3, device=device), torch.ones(3, device=device), 1e-6
    )


def residual(device: torch.device) -> Any:
    """One row."""
    given = (seeded(1, 3), seeded(1, 3, seed=1), torch.ones(3))
    return list(torch.ops.day0.fused_add_rms_norm(*(one.to(device) for one in given), 1e-6))


def norm(device: torch.device) -> Any:
    """Small values and a large eps."""
    return torch.ops.day0.rms_norm((seeded(1, 3) * 1e-2).to(device), torch.ones(3, device=device), 1e-3)


def pools(device: torch.device) -> Any:
    """One pool of two tokens and an incomplete one, behind one token of padding."""
    chosen, first = torch.tensor([[[0]]], dtype=torch.int32), torch.tensor([1])
    return list(torch.ops.day0.expand_pools(chosen.to(device), first.to(device), 2, 3, 4))


def images(device: torch.device) -> Any:
    """Two images of two patches."""
    q, image = seeded(4, 1, 4).to(device), torch.tensor([0, 0, 1, 1], dtype=torch.int32)
    places = torch.tensor([[0, 0], [0, 1], [0, 0], [0, 1]])
    return torch.ops.day0.vision_attention(q, q, q, image.to(device), places.to(device), 0.5)


def patches(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """One patch in row 1, column 3."""
    return seeded(1, 1, 4).to(device), torch.tensor([[1, 3]], device=device)

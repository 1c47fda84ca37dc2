"""What the two forms of Kimi Delta Attention share: checks, normalisation, state layouts, valid arguments.

Shape suffixes: B batch, S tokens, H heads, K key channels, V value channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._write import write

__all__ = ["LAYOUTS", "argument_sets", "check_arguments", "fake", "fill", "normalised", "read_state", "write_state"]

LAYOUTS = {"kv": "BHKV", "vk": "BHVK"}
"""Dimensions of the state by the name of its layout. With K = V a wrong layout is silent, so it has a name."""


def check_arguments(operator: str, tensors: tuple[torch.Tensor, ...], layout: str) -> Arguments:
    """Refuse q, k, v, g, beta, state that do not fit each other or the layout of the state."""
    check = Arguments(operator)
    check.true("state_layout", layout in LAYOUTS, " or ".join(repr(one) for one in LAYOUTS), repr(layout))
    letters = ("BSHK", "BSHK", "BSHV", "BSHK", "BSH", LAYOUTS[layout])
    for name, tensor, shape in zip(("q", "k", "v", "g", "beta", "state"), tensors, letters, strict=True):
        check.shape(name, tensor, shape)
        check.floating(name, tensor)
    return check


def normalised(x: torch.Tensor) -> torch.Tensor:
    """Return x over its length, with 1e-6 inside the root."""
    return x / (x.square().sum(dim=-1, keepdim=True) + 1e-6).sqrt()


def read_state(state: torch.Tensor, layout: str, wide: torch.dtype) -> torch.Tensor:
    """Return the state as [B, H, K, V] in `wide`; it may be the argument itself or a view of it."""
    return (state if layout == "kv" else state.transpose(-1, -2)).to(wide)


def write_state(state_BHKV: torch.Tensor, layout: str, dtype: torch.dtype) -> torch.Tensor:
    """Return the state in its layout and dtype, in memory of its own: with no tokens it would be the argument."""
    state = state_BHKV if layout == "kv" else state_BHKV.transpose(-1, -2)
    return state.to(dtype).clone(memory_format=torch.contiguous_format)


def fake(q_BSHK: torch.Tensor, v_BSHV: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results of both forms."""
    return v_BSHV.new_empty(v_BSHV.shape, dtype=q_BSHK.dtype), state.new_empty(state.shape)


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Decays at most 1 (g from -5 to 0, the last channel of each head at -5 throughout), strengths between 0 and 1."""
    g_BSHK, beta_BSH = args[3], args[4]
    gates_BSHK = -5.0 * torch.rand(g_BSHK.shape, generator=generator)
    gates_BSHK[..., -1:] = -5.0  # what is forgotten fastest: sums of gates over a chunk are then as large as they get
    write(g_BSHK, gates_BSHK)
    write(beta_BSH, torch.rand(beta_BSH.shape, generator=generator))


def argument_sets(generator: torch.Generator, layout: str) -> Iterator[tuple[str, tuple[torch.Tensor, ...]]]:
    """Yield a kind and q, k, v, g, beta, state: K and V apart, a padding token, almost nothing left, K3's heads."""
    for kind, (batch, tokens, heads, keys, values) in (
        ("small", (1, 4, 2, 8, 6)),
        ("odd", (2, 5, 3, 7, 11)),
        ("corner", (1, 1, 1, 1, 2)),
        ("traced", (1, 3, 96, 128, 128)),
    ):
        q_BSHK, k_BSHK = (torch.randn(batch, tokens, heads, keys, generator=generator) for _ in range(2))
        v_BSHV = torch.randn(batch, tokens, heads, values, generator=generator)
        g_BSHK = torch.zeros(batch, tokens, heads, keys)
        beta_BSH = torch.zeros(batch, tokens, heads)
        state_BHKV = torch.randn(batch, heads, keys, values, generator=generator)
        args = (q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH, write_state(state_BHKV, layout, torch.float32))
        fill(args, {}, generator)
        if kind == "odd":
            g_BSHK[:, 2], beta_BSH[:, 2] = 0.0, 0.0
        if kind == "corner":
            g_BSHK.fill_(-80.0)
        yield kind, args

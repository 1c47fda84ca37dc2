"""day0::kda_recurrent in Triton: a part of the value channels of one head's state stays in registers, token by token.

Shape suffixes: B batch, S tokens, H heads, K key channels, V value channels.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from day0.devices.current import on_its_device
from day0.implementation import Constraints, Implementation, Limit, TensorLimit
from day0.kernels.triton._math import functions
from day0.kernels.triton._tiles import sizes
from day0.kernels.triton._triton import FLOATS, has_triton, next_power_of_2, triton_and_language
from day0.reference_ops.kda_recurrent import validate

__all__ = ["CHOICES", "IMPLEMENTATIONS", "TILES"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next is."""
exp: Any = None

TILES = {"values": 32, "warps": 4, "stages": 2}
"""Value channels of one program: 96 heads of 128 are 384 programs for each sequence."""
CHOICES = {"values": (8, 16, 32, 64, 128), "warps": (1, 2, 4, 8), "stages": (1, 2, 3)}
LARGEST = 256
"""Channels of a head."""


@cache
def _kernel() -> Any:
    global tl, exp
    triton, tl = triton_and_language()
    exp = functions().exp

    @triton.jit
    def recur(
        q,
        k,
        v,
        g,
        beta,
        state,
        out,
        new,
        tokens,
        heads,
        factor,
        step_k,
        step_v,
        K: tl.constexpr,
        KP: tl.constexpr,
        V: tl.constexpr,
        VALUES: tl.constexpr,
    ):
        head = tl.program_id(0).to(tl.int64)
        batch, h = head // heads, head % heads
        i, j = tl.arange(0, KP), tl.program_id(1) * VALUES + tl.arange(0, VALUES)
        keys, values = i < K, j < V
        inside = keys[:, None] & values[None, :]
        at = head * K * V + i[:, None] * step_k + j[None, :] * step_v
        held = tl.load(state + at, mask=inside, other=0.0).to(tl.float32)
        for token in range(tokens):
            row = (batch * tokens + token) * heads + h
            query = tl.load(q + row * K + i, mask=keys, other=0.0).to(tl.float32)
            key = tl.load(k + row * K + i, mask=keys, other=0.0).to(tl.float32)
            value = tl.load(v + row * V + j, mask=values, other=0.0).to(tl.float32)
            decay = exp(tl.load(g + row * K + i, mask=keys, other=0.0).to(tl.float32))
            strength = tl.load(beta + row).to(tl.float32)
            query = query / tl.sqrt_rn(tl.sum(query * query, 0) + 1e-6) * factor
            key = key / tl.sqrt_rn(tl.sum(key * key, 0) + 1e-6)
            # Decay, read what the decayed state holds for this key, write the difference, read the output.
            held = held * decay[:, None]
            change = strength * (value - tl.sum(held * key[:, None], 0))
            held = held + key[:, None] * change[None, :]
            read = tl.sum(held * query[:, None], 0)
            tl.store(out + row * V + j, read.to(out.dtype.element_ty), mask=values)
        tl.store(new + at, held.to(new.dtype.element_ty), mask=inside)

    return recur


@on_its_device
def recur(
    q_BSHK: torch.Tensor,
    k_BSHK: torch.Tensor,
    v_BSHV: torch.Tensor,
    g_BSHK: torch.Tensor,
    beta_BSH: torch.Tensor,
    state: torch.Tensor,
    state_layout: str = "kv",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output [B, S, H, V] in the dtype of q, and the new state in the layout and dtype of `state`."""
    validate(q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH, state, state_layout)
    batch, tokens, heads, keys = q_BSHK.shape
    values = v_BSHV.shape[-1]
    out_BSHV = torch.empty(batch, tokens, heads, values, dtype=q_BSHK.dtype, device=q_BSHK.device)
    new = torch.empty(state.shape, dtype=state.dtype, device=state.device)
    if not out_BSHV.numel() and not new.numel():
        return out_BSHV, new
    tile = sizes("kda_recurrent", TILES, q_BSHK.device)
    block = min(tile["values"], next_power_of_2(values))
    _kernel()[(batch * heads, -(-values // block))](
        *(one.contiguous() for one in (q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH, state)),
        out_BSHV,
        new,
        tokens,
        heads,
        keys**-0.5,
        1 if state_layout == "vk" else values,
        keys if state_layout == "vk" else 1,
        K=keys,
        KP=next_power_of_2(keys),
        V=values,
        VALUES=block,
        num_warps=tile["warps"],
        num_stages=tile["stages"],
    )
    return out_BSHV, new


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::kda_recurrent",
        contract=2,
        id="triton",
        version="1.0",
        kind="kernel",
        run=recur,
        why="the state is read once and written once, in float32 between tokens",
        devices=("cuda",),
        constraints=Constraints(
            dtypes=FLOATS,
            arguments={
                "q": TensorLimit(sizes={-1: Limit(at_least=1, at_most=LARGEST)}),
                "v": TensorLimit(sizes={-1: Limit(at_least=1, at_most=1024)}),
            },
        ),
        predicate=has_triton,
        rank=50,
    ),
)

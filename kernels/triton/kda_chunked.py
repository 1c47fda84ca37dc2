"""day0::kda_chunked in Triton: sixteen tokens at a time, in two launches.

The first works on all chunks at once and finds, for each, what its tokens read of each other: a lower triangle of
queries and the inverse of that of keys. The second goes from chunk to chunk with the state in registers. Every exponent
is a sum of gates, so never above 0: at the bound of -5, sixteen tokens are e^-80, and nothing overflows.

Shape suffixes: B batch, S tokens, H heads, K key channels, V value channels, C tokens of a chunk.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from day0.implementation import Constraints, Implementation, Limit, TensorLimit
from day0.kernels.triton._math import functions
from day0.kernels.triton._tiles import sizes
from day0.kernels.triton._triton import FLOATS, has_triton, next_power_of_2, triton_and_language
from day0.reference_ops.kda_chunked import validate

__all__ = ["CHOICES", "IMPLEMENTATIONS", "TILES"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next are."""
exp: Any = None
unit: Any = None

CHUNK = 16
"""Tokens that are worked on at once, whatever the attribute `chunk` says: it means the same for every chunk."""
TILES = {"pair_warps": 4, "values": 32, "warps": 4, "stages": 2, "precision": 3}
"""Value channels of one program. Precision of products: 1 is TF32, 3 three TF32 products that give float32 back, 4 none
but float32. With 1 the state is wrong by 1e-3 and the check says so; it is there for what it costs to be measured."""
CHOICES = {
    "pair_warps": (1, 2, 4),
    "values": (16, 32, 64, 128),
    "warps": (2, 4, 8),
    "stages": (1, 2, 3),
    "precision": (3, 4),
}
PRECISION = {1: "tf32", 3: "tf32x3", 4: "ieee"}
LARGEST = 256
"""Channels of a head."""


@cache
def _kernels() -> tuple[Any, Any]:
    """Return the kernel for the inside of chunks, and the one that carries the state through them."""
    global tl, exp, unit
    triton, tl = triton_and_language()
    exp = functions().exp

    @triton.jit
    def unit(x):
        return x / tl.sqrt_rn(tl.sum(x * x, 1) + 1e-6)[:, None]

    @triton.jit
    def inside(
        q, k, g, beta, read, inverse, tokens, heads, chunks, factor, K: tl.constexpr, KP: tl.constexpr, C: tl.constexpr
    ):
        chunk, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
        batch, h = head // heads, head % heads
        c, i = tl.arange(0, C), tl.arange(0, KP)
        token = chunk * C + c
        row = (batch * tokens + token) * heads + h
        real = (token < tokens)[:, None] & (i < K)[None, :]
        key = unit(tl.load(k + row[:, None] * K + i[None, :], mask=real, other=0.0).to(tl.float32))
        left = tl.zeros([C, KP], tl.float32)
        reads = tl.zeros([C, C], tl.float32)
        system = tl.zeros([C, C], tl.float32)
        for now in range(C):
            # What is left at this token of what each earlier one wrote: multiplied on, never divided.
            at = chunk * C + now
            mine = (batch * tokens + at) * heads + h
            there = (i < K) & (at < tokens)
            decay = exp(tl.load(g + mine * K + i, mask=there, other=0.0).to(tl.float32))
            left = tl.where((c == now)[:, None], key, left * decay[None, :])
            own = tl.sum(tl.where((c == now)[:, None], key, 0.0), 0)
            query = tl.load(q + mine * K + i, mask=there, other=0.0).to(tl.float32)
            query = query / tl.sqrt_rn(tl.sum(query * query, 0) + 1e-6) * factor
            strength = tl.load(beta + mine, mask=at < tokens, other=0.0).to(tl.float32)
            asked = tl.sum(left * query[None, :], 1)
            known = strength * tl.sum(left * own[None, :], 1)
            reads = tl.where((c == now)[:, None] & (c <= now)[None, :], asked[None, :], reads)
            system = tl.where((c == now)[:, None] & (c < now)[None, :], known[None, :], system)
        # Rows of the inverse of 1 + system, one after the other.
        solved = tl.zeros([C, C], tl.float32)
        for now in range(C):
            line = tl.sum(tl.where((c == now)[:, None], system, 0.0), 0)
            result = (c == now).to(tl.float32) - tl.sum(line[:, None] * solved, 0)
            solved = tl.where((c == now)[:, None], result[None, :], solved)
        to = (head * chunks + chunk) * C * C + c[:, None] * C + c[None, :]
        tl.store(read + to, reads)
        tl.store(inverse + to, solved)

    @triton.jit
    def across(
        q,
        k,
        v,
        g,
        beta,
        state,
        read,
        inverse,
        out,
        new,
        tokens,
        heads,
        chunks,
        factor,
        step_k,
        step_v,
        K: tl.constexpr,
        KP: tl.constexpr,
        V: tl.constexpr,
        VALUES: tl.constexpr,
        C: tl.constexpr,
        PRECISION: tl.constexpr,
    ):
        head = tl.program_id(0).to(tl.int64)
        batch, h = head // heads, head % heads
        c, i, j = tl.arange(0, C), tl.arange(0, KP), tl.program_id(1) * VALUES + tl.arange(0, VALUES)
        inside = (i < K)[:, None] & (j < V)[None, :]
        at = head * K * V + i[:, None] * step_k + j[None, :] * step_v
        held = tl.load(state + at, mask=inside, other=0.0).to(tl.float32)
        for chunk in range(chunks):
            token = chunk * C + c
            row = (batch * tokens + token) * heads + h
            given = (token < tokens)[:, None]
            keys, values = given & (i < K)[None, :], given & (j < V)[None, :]
            query = unit(tl.load(q + row[:, None] * K + i[None, :], mask=keys, other=0.0).to(tl.float32)) * factor
            key = unit(tl.load(k + row[:, None] * K + i[None, :], mask=keys, other=0.0).to(tl.float32))
            value = tl.load(v + row[:, None] * V + j[None, :], mask=values, other=0.0).to(tl.float32)
            gate = tl.load(g + row[:, None] * K + i[None, :], mask=keys, other=0.0).to(tl.float32)
            strength = tl.load(beta + row, mask=token < tokens, other=0.0).to(tl.float32)
            # The gates after each token: those of the next ones, read one row further on.
            after = given & (token + 1 < tokens)[:, None] & (c + 1 < C)[:, None] & (i < K)[None, :]
            later = tl.load(g + (row + heads)[:, None] * K + i[None, :], mask=after, other=0.0).to(tl.float32)
            since = exp(tl.cumsum(gate, 0))
            until = exp(tl.cumsum(later, 0, reverse=True))
            whole = exp(tl.sum(gate, 0))
            square = (head * chunks + chunk) * C * C + c[:, None] * C + c[None, :]
            asked = value - tl.dot(key * since, held, input_precision=PRECISION)
            change = tl.dot(tl.load(inverse + square), strength[:, None] * asked, input_precision=PRECISION)
            result = tl.dot(query * since, held, input_precision=PRECISION)
            result = tl.dot(tl.load(read + square), change, result, input_precision=PRECISION)
            held = tl.dot(tl.trans(key * until), change, held * whole[:, None], input_precision=PRECISION)
            tl.store(out + row[:, None] * V + j[None, :], result.to(out.dtype.element_ty), mask=values)
        tl.store(new + at, held.to(new.dtype.element_ty), mask=inside)

    return inside, across


def chunked(
    q_BSHK: torch.Tensor,
    k_BSHK: torch.Tensor,
    v_BSHV: torch.Tensor,
    g_BSHK: torch.Tensor,
    beta_BSH: torch.Tensor,
    state: torch.Tensor,
    chunk: int = 16,
    state_layout: str = "kv",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output [B, S, H, V] in the dtype of q, and the new state in the layout and dtype of `state`."""
    validate(q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH, state, chunk, state_layout)
    batch, tokens, heads, keys = q_BSHK.shape
    values, chunks = v_BSHV.shape[-1], -(-tokens // CHUNK)
    out_BSHV = torch.empty(batch, tokens, heads, values, dtype=q_BSHK.dtype, device=q_BSHK.device)
    new = torch.empty(state.shape, dtype=state.dtype, device=state.device)
    if not out_BSHV.numel() and not new.numel():
        return out_BSHV, new
    q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH, state = (
        one.contiguous() for one in (q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH, state)
    )
    tile = sizes("kda_chunked", TILES, q_BSHK.device)
    read, inverse = (
        torch.empty(batch * heads, chunks, CHUNK, CHUNK, dtype=torch.float32, device=q_BSHK.device) for _ in range(2)
    )
    inside, across = _kernels()
    shapes = {"K": keys, "KP": next_power_of_2(keys, 16), "C": CHUNK}
    counts = (tokens, heads, chunks, keys**-0.5)
    if chunks:
        inside[(chunks, batch * heads)](
            q_BSHK, k_BSHK, g_BSHK, beta_BSH, read, inverse, *counts, num_warps=tile["pair_warps"], **shapes
        )
    block = min(tile["values"], next_power_of_2(values, 16))
    across[(batch * heads, -(-values // block))](
        q_BSHK,
        k_BSHK,
        v_BSHV,
        g_BSHK,
        beta_BSH,
        state,
        read,
        inverse,
        out_BSHV,
        new,
        *counts,
        1 if state_layout == "vk" else values,
        keys if state_layout == "vk" else 1,
        V=values,
        VALUES=block,
        PRECISION=PRECISION[tile["precision"]],
        num_warps=tile["warps"],
        num_stages=tile["stages"],
        **shapes,
    )
    return out_BSHV, new


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::kda_chunked",
        contract=1,
        id="triton",
        version="1.0",
        kind="kernel",
        run=chunked,
        why="sixteen tokens at a time through the matrix unit, state in float32, safe at the bound of the gate",
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

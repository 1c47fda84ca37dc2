"""day0::kda_chunked in Triton: what chunks need of themselves all at once, then the state through them.

`prepare` works on all chunks of all heads at once: what their tokens read of each other, the inverse of that triangle,
and with it what each chunk adds (`u`) and takes away of what the state holds (`w`). `across` goes from chunk to chunk
with the state in registers: two products a chunk, and the output beside them, or (`parts` 2) in a third launch.

Pairs of tokens of a block: where the gates from its middle on, and back to it, are near, one product of factors that no
exponent above 60 is in (a bound of -5 makes 40); elsewhere a sum of gates for each distance, so that nothing overflows
and a gate of -inf costs no digits of others. Between blocks no exponent is above 0. With parallel keys powers of the
triangle would grow beyond float32; its inverse is put together from those of halves, whose entries stay small.

Shape suffixes: B batch, S tokens, H heads, K key channels, V value channels, C tokens of a chunk, N chunks of all heads.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from day0.devices.current import on_its_device
from day0.implementation import Constraints, Implementation, Limit, TensorLimit
from day0.kernels.triton._math import functions
from day0.kernels.triton._tiles import processors, sizes
from day0.kernels.triton._triton import FLOATS, has_triton, next_power_of_2, triton_and_language
from day0.reference_ops.kda_chunked import validate

__all__ = ["CHOICES", "IMPLEMENTATIONS", "STARTS", "TILES"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next are."""
exp: Any = None
unit: Any = None
block: Any = None
answer: Any = None

HALF = 16
CHUNK = 2 * HALF
"""Tokens that are worked on at once, whatever the attribute `chunk` says: it means the same for every chunk.
A NaN spoils its head from the start of such a chunk."""
TILES = {
    "pair_warps": 2,
    "values": 128,
    "warps": 8,
    "stages": 2,
    "precision": 3,
    "answers": 1,
    "parts": 1,
    "chunks": 1 << 14,
}
"""Value channels of one program of `across`. Precision of products: 1 is TF32, 3 three TF32 products that give float32
back, 4 none but float32. With `precision` 1 the state is wrong by 1e-3 and the check says so; `answers` is that of the
products that only an output in bfloat16 comes from, which rounds to fewer digits than TF32 has; other outputs take
`precision`. So many `chunks` of all heads are prepared at once, in 1 GB at 128 channels; longer sequences go in parts."""
CHOICES = {
    "pair_warps": (1, 2, 4),
    "values": (16, 32, 64, 128),
    "warps": (4, 8),
    "stages": (1, 2, 3),
    "parts": (1, 2),
    "answers": (1, 3),
    "precision": (3, 4),
    "chunks": (1 << 14, 1 << 15),
}
STARTS = (
    {"values": 128, "warps": 8, "stages": 1},
    {"values": 64, "warps": 4, "stages": 1},
    {"values": 64, "warps": 8, "stages": 1},
    {"parts": 2, "values": 64, "warps": 4, "stages": 1},
    {"parts": 2, "values": 128, "warps": 8, "stages": 2},
)
"""Sizes that belong together: what fits one program to a processor, and what fits two."""
PRECISION = {1: "tf32", 3: "tf32x3", 4: "ieee"}
LARGEST = 256
"""Channels of a head."""


@cache
def _kernels() -> tuple[Any, Any, Any]:
    """Return the kernel for the inside of chunks, the one that carries the state on, and the one for outputs alone."""
    global tl, exp, unit, block, answer
    triton, tl = triton_and_language()
    exp = functions().exp

    @triton.jit
    def unit(x):
        return x * tl.div_rn(1.0, tl.sqrt_rn(tl.sum(x * x, 1) + 1e-6))[:, None]

    @triton.jit
    def block(
        q, k, g, beta, row, token, tokens, heads, factor, K: tl.constexpr, KP: tl.constexpr, T: tl.constexpr,
        PRECISION: tl.constexpr, ANSWERS: tl.constexpr,
    ):  # fmt: skip
        # Of T tokens: queries and keys, what is left since their start and until their end, what queries read of keys,
        # and the inverse of 1 + what keys read of each other.
        c, i = tl.arange(0, T), tl.arange(0, KP)
        at = row[:, None] * K + i[None, :]
        given = token < tokens
        keys = given[:, None] & (i < K)[None, :]
        key = unit(tl.load(k + at, mask=keys, other=0.0).to(tl.float32))
        query = unit(tl.load(q + at, mask=keys, other=0.0).to(tl.float32)) * factor
        gate = tl.load(g + at, mask=keys, other=0.0).to(tl.float32)
        strength = tl.load(beta + row, mask=given, other=0.0).to(tl.float32)
        # Sums of gates as products with 0 and 1, 22 bits of each gate; a gate that leaves nothing must not be -inf.
        summed, at_token = c[None, :], c[:, None]
        bounded = tl.where(gate < -1000.0, -1000.0, gate)
        before = (summed <= at_token).to(tl.float32)
        since = tl.exp(tl.dot(before, bounded, input_precision=PRECISION))
        until = tl.exp(tl.dot(1.0 - before, bounded, input_precision=PRECISION))
        whole = exp(tl.sum(gate, 0))
        # From the middle on, and back to it, below 0: where both are near, factors and their inverses lose no digits.
        middle = T // 2
        on = ((summed >= middle) & (summed <= at_token)).to(tl.float32)
        back = ((summed < middle) & (summed > at_token)).to(tl.float32)
        apart = tl.dot(on - back, bounded, input_precision=PRECISION)
        if tl.max(tl.max(tl.abs(apart), 1), 0) <= 60.0:
            rise = tl.exp(apart)
            left = tl.trans(key * tl.exp(-apart))
            read = tl.dot(query * rise, left, input_precision=ANSWERS)
            system = tl.dot(key * rise, left, input_precision=PRECISION)
        else:
            # By their distance: the gates between two tokens are added up one after the other.
            passed = tl.zeros([T, KP], tl.float32)
            read = tl.where(c[:, None] == c[None, :], tl.sum(query * key, 1)[:, None], 0.0)
            system = tl.zeros([T, T], tl.float32)
            for distance in range(1, T):
                near = keys & (c >= distance)[:, None]
                passed += tl.load(g + at - (distance - 1) * heads * K, mask=near, other=0.0).to(tl.float32)
                left = unit(tl.load(k + at - distance * heads * K, mask=near, other=0.0).to(tl.float32))
                left *= tl.exp(passed)
                here = c[:, None] - c[None, :] == distance
                read = tl.where(here, tl.sum(left * query, 1)[:, None], read)
                system = tl.where(here, tl.sum(left * key, 1)[:, None], system)
        read = tl.where(c[:, None] >= c[None, :], read, 0.0)
        system = tl.where(c[:, None] > c[None, :], system * strength[:, None], 0.0)
        # The inverse: of pairs, then of twice as many tokens, whose corner is minus two products.
        inverse = (c[:, None] == c[None, :]).to(tl.float32)
        inverse -= tl.where((c // 2)[:, None] == (c // 2)[None, :], system, 0.0)
        for level in tl.static_range(1, 4):
            part = c // (1 << level)
            here = (part % 2 == 1)[:, None] & (part[:, None] == part[None, :] + 1)
            corner = tl.dot(tl.where(here, system, 0.0), inverse, input_precision=PRECISION)
            inverse -= tl.dot(inverse, corner, input_precision=PRECISION)
        return query, key, strength, since, until, whole, read, inverse

    @triton.jit
    def prepare(
        q, k, v, g, beta, minus_w, u, writes, queries, reads, decay, first, tokens, heads, chunks, factor,
        K: tl.constexpr, KP: tl.constexpr, V: tl.constexpr, VP: tl.constexpr, VALUES: tl.constexpr, C: tl.constexpr,
        T: tl.constexpr, PRECISION: tl.constexpr, ANSWERS: tl.constexpr,
    ):  # fmt: skip
        head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
        batch, h = head // heads, head % heads
        c, i = tl.arange(0, T), tl.arange(0, KP)
        token = first + chunk * C + c
        row = (batch * tokens + token) * heads + h
        this = head * chunks + chunk
        to = this * C * KP + c[:, None] * KP + i[None, :]
        across = this * C * KP + i[:, None] * C + c[None, :]
        pairs = this * C * C + c[:, None] * C + c[None, :]
        query, key, strength, since, until, whole, read, inverse = block(
            q, k, g, beta, row, token, tokens, heads, factor, K, KP, T, PRECISION, ANSWERS
        )
        tl.store(queries + to, query * since)
        tl.store(reads + pairs, read)
        tl.store(reads + pairs + T, tl.zeros([T, T], tl.float32))
        w = tl.dot(inverse, key * since * strength[:, None], input_precision=PRECISION)
        tl.store(minus_w + to, -w)
        kept = key * until
        # The second half: it reads what the first has written, through what is left of it at its end.
        row2 = row + T * heads
        query2, key2, strength2, since2, until2, whole2, read2, inverse2 = block(
            q, k, g, beta, row2, token + T, tokens, heads, factor, K, KP, T, PRECISION, ANSWERS
        )
        tl.store(queries + to + T * KP, query2 * since2 * whole[None, :])
        tl.store(reads + pairs + T * C + T, read2)
        tl.store(reads + pairs + T * C, tl.dot(query2 * since2, tl.trans(kept), input_precision=ANSWERS))
        system = tl.dot(key2 * since2, tl.trans(kept), input_precision=PRECISION) * strength2[:, None]
        tl.store(writes + across, tl.trans(kept * whole2[None, :]))
        tl.store(writes + across + T, tl.trans(key2 * until2))
        tl.store(decay + this * KP + i, whole * whole2)
        asked = key2 * since2 * whole[None, :] * strength2[:, None] - tl.dot(system, w, input_precision=PRECISION)
        tl.store(minus_w + to + T * KP, -tl.dot(inverse2, asked, input_precision=PRECISION))
        for start in range(0, VP, VALUES):
            j = start + tl.arange(0, VALUES)
            shown, at = (j < V)[None, :], row[:, None] * V + j[None, :]
            value = tl.load(v + at, mask=(token < tokens)[:, None] & shown, other=0.0).to(tl.float32)
            change = tl.dot(inverse, value * strength[:, None], input_precision=PRECISION)
            value = tl.load(v + at + T * heads * V, mask=(token + T < tokens)[:, None] & shown, other=0.0).to(
                tl.float32
            )
            value = value * strength2[:, None] - tl.dot(system, change, input_precision=PRECISION)
            place = this * C * VP + j[:, None] * C + c[None, :]
            tl.store(u + place, tl.trans(change))
            tl.store(u + place + T, tl.trans(tl.dot(inverse2, value, input_precision=PRECISION)))

    @triton.jit
    def answer(queries, reads, held, change, this, KP: tl.constexpr, C: tl.constexpr, ANSWERS: tl.constexpr):
        # What the state before the chunk says to its queries, and what its own tokens have written since.
        c, i = tl.arange(0, C), tl.arange(0, KP)
        query = tl.load(queries + this * C * KP + c[:, None] * KP + i[None, :])
        read = tl.load(reads + this * C * C + c[:, None] * C + c[None, :])
        result = tl.dot(held, tl.trans(query), input_precision=ANSWERS)
        return tl.dot(change, tl.trans(read), result, input_precision=ANSWERS)

    @triton.jit
    def across(
        minus_w, u, writes, queries, reads, decay, state, new, states, out, first, tokens, heads, chunks, step_k,
        step_v, to_k, to_v, K: tl.constexpr, KP: tl.constexpr, V: tl.constexpr, VP: tl.constexpr,
        VALUES: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr, ANSWERS: tl.constexpr, PARTS: tl.constexpr,
    ):  # fmt: skip
        head = tl.program_id(0).to(tl.int64)
        batch, h = head // heads, head % heads
        c, i, j = tl.arange(0, C), tl.arange(0, KP), tl.program_id(1) * VALUES + tl.arange(0, VALUES)
        # The state lies with its values first: products then have VALUES rows, whatever the chunk.
        inside = (j < V)[:, None] & (i < K)[None, :]
        at = head * K * V + j[:, None] * step_v + i[None, :] * step_k
        held = tl.load(state + at, mask=inside, other=0.0).to(tl.float32)
        for chunk in range(chunks):
            this = head * chunks + chunk
            lost = tl.load(minus_w + this * C * KP + c[:, None] * KP + i[None, :])
            place = this * C * VP + j[:, None] * C + c[None, :]
            change = tl.dot(held, tl.trans(lost), tl.load(u + place), input_precision=PRECISION)
            if PARTS == 1:
                result = answer(queries, reads, held, change, this, KP, C, ANSWERS)
                token = first + chunk * C + c
                shown = (j < V)[:, None] & (token < tokens)[None, :]
                row = (batch * tokens + token) * heads + h
                tl.store(out + row[None, :] * V + j[:, None], result.to(out.dtype.element_ty), mask=shown)
            else:
                tl.store(states + this * KP * VP + j[:, None] * KP + i[None, :], held)
                tl.store(u + place, change)
            left = tl.load(writes + this * C * KP + i[:, None] * C + c[None, :])
            whole = tl.load(decay + this * KP + i)
            held = tl.dot(change, tl.trans(left), held * whole[None, :], input_precision=PRECISION)
        at = head * K * V + j[:, None] * to_v + i[None, :] * to_k
        tl.store(new + at, held.to(new.dtype.element_ty), mask=inside)

    @triton.jit
    def outputs(
        u, queries, reads, states, out, first, tokens, heads, chunks, KP: tl.constexpr, V: tl.constexpr,
        VP: tl.constexpr, VALUES: tl.constexpr, C: tl.constexpr, ANSWERS: tl.constexpr,
    ):  # fmt: skip
        head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
        batch, h = head // heads, head % heads
        c, i, j = tl.arange(0, C), tl.arange(0, KP), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
        this = head * chunks + chunk
        held = tl.load(states + this * KP * VP + j[:, None] * KP + i[None, :])
        change = tl.load(u + this * C * VP + j[:, None] * C + c[None, :])
        result = answer(queries, reads, held, change, this, KP, C, ANSWERS)
        token = first + chunk * C + c
        row = (batch * tokens + token) * heads + h
        shown = (j < V)[:, None] & (token < tokens)[None, :]
        tl.store(out + row[None, :] * V + j[:, None], result.to(out.dtype.element_ty), mask=shown)

    return prepare, across, outputs


@on_its_device
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
    values = v_BSHV.shape[-1]
    out_BSHV = torch.empty(batch, tokens, heads, values, dtype=q_BSHK.dtype, device=q_BSHK.device)
    new = torch.empty(state.shape, dtype=state.dtype, device=state.device)
    if not out_BSHV.numel() and not new.numel():
        return out_BSHV, new
    inputs = tuple(one.contiguous() for one in (q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH))
    steps = (1, keys) if state_layout == "vk" else (values, 1)
    tile = sizes("kda_chunked", TILES, q_BSHK.device)
    most = max(1, tile["chunks"] // (batch * heads)) * CHUNK
    # Between parts the state stays in float32, as it is between chunks.
    held, held_steps = state.contiguous(), steps
    for first in range(0, max(1, tokens), most):
        last = first + most >= tokens
        after = new if last else torch.empty(batch, heads, keys, values, device=new.device)
        after_steps = steps if last else (values, 1)
        chunks = -(-min(most, tokens - first) // CHUNK)
        _part(inputs, out_BSHV, held, after, (first, chunks), (*held_steps, *after_steps), tile)
        held, held_steps = after, after_steps
    return out_BSHV, new


def _part(
    inputs: tuple[torch.Tensor, ...],
    out_BSHV: torch.Tensor,
    state: torch.Tensor,
    new: torch.Tensor,
    part: tuple[int, int],
    steps: tuple[int, ...],
    tile: dict[str, int],
) -> None:
    """Write the outputs of some chunks, and the state after them; `part` is their first token and their number."""
    (batch, tokens, heads, keys), (first, chunks) = inputs[0].shape, part
    values, rows = out_BSHV.shape[-1], batch * heads
    shapes = {"KP": next_power_of_2(keys, 16), "V": values, "VP": next_power_of_2(values, 16), "C": CHUNK}
    size, stages = _of_a_program(tile, rows, shapes["KP"], shapes["VP"], out_BSHV.device)
    precision, tiles = PRECISION[tile["precision"]], -(-values // size)
    answers = PRECISION[tile["answers"]] if out_BSHV.dtype == torch.bfloat16 else precision
    many: dict[str, tuple[int, ...]] = {
        "keys": (CHUNK, shapes["KP"]),
        "values": (CHUNK, shapes["VP"]),
        "pairs": (CHUNK, CHUNK),
    }
    many |= {"channels": (shapes["KP"],), "state": (shapes["KP"], shapes["VP"]) if tile["parts"] == 2 else (0,)}

    def scratch(kind: str) -> torch.Tensor:
        return torch.empty(rows, chunks, *many[kind], dtype=torch.float32, device=out_BSHV.device)

    minus_w, u, writes = scratch("keys"), scratch("values"), scratch("keys")
    queries, reads, decay, states = scratch("keys"), scratch("pairs"), scratch("channels"), scratch("state")
    counts = (first, tokens, heads, chunks)
    prepare, across, outputs = _kernels()
    if chunks:
        prepare[(rows, chunks)](
            *inputs, minus_w, u, writes, queries, reads, decay, *counts, keys**-0.5,
            K=keys, VALUES=min(64, shapes["VP"]), T=HALF, PRECISION=precision, ANSWERS=answers,
            num_warps=tile["pair_warps"] * (2 if keys > 128 else 1), **shapes,
        )  # fmt: skip
    across[(rows, tiles)](
        minus_w, u, writes, queries, reads, decay, state, new, states, out_BSHV, *counts, *steps,
        K=keys, VALUES=size, PRECISION=precision, ANSWERS=answers, PARTS=tile["parts"],
        num_warps=tile["warps"], num_stages=stages, **shapes,
    )  # fmt: skip
    if chunks and tile["parts"] == 2:
        outputs[(rows, chunks, tiles)](
            u, queries, reads, states, out_BSHV, *counts,
            VALUES=size, ANSWERS=answers, num_warps=tile["warps"], **shapes,
        )  # fmt: skip


def _of_a_program(tile: dict[str, int], rows: int, keys: int, values: int, device: torch.device) -> tuple[int, int]:
    """Return value channels and stages of one program of `across`: few where few heads would leave processors idle."""
    size, stages = min(tile["values"], values), tile["stages"]
    if keys > 128:
        # Twice the state in registers, and twice of each chunk in shared memory.
        size, stages = min(size, 64), 1
    while size > 32 and 2 * rows * (values // size) <= processors(device):
        size //= 2
    return size, stages


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::kda_chunked",
        contract=1,
        id="triton",
        version="2.0",
        kind="kernel",
        run=chunked,
        why="chunks through the matrix unit, all at once but for the state, which stays in float32; safe for any gate",
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

"""day0::kda_chunked in Triton: what chunks need of themselves all at once, then the state through them.

`prepare` works on all chunks of all heads at once: what their tokens read of each other and the inverse of that
triangle. `across` goes from chunk to chunk with the state in registers: what a chunk asks of the state and, through the
inverse, changes of it, and the output beside that. Products that the state comes from are of float32: of three parts in
bfloat16 each, six products of parts, in which no part needs another layout or is made twice.

Pairs of tokens of a block: where the gates from its middle on, and back to it, are near, one product of factors that no
exponent above 60 is in (a bound of -5 makes 40). A chunk with others is left to `distant`: a sum of gates for each
distance, so that nothing overflows and a gate of -inf costs no digits of others. With parallel keys powers of the
triangle would grow beyond float32; its inverse is put together from those of halves, whose entries stay small.

Shape suffixes: B batch, S tokens, H heads, K key channels, V value channels, C tokens of a chunk, N chunks of all heads.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from day0.devices.current import on_its_device
from day0.implementation import Constraints, Implementation, Limit, TensorLimit
from day0.kernels.triton._kda_pairs import pairs_of_a_chunk
from day0.kernels.triton._math import functions
from day0.kernels.triton._parts import parts_of_float32
from day0.kernels.triton._tiles import processors, sizes
from day0.kernels.triton._triton import FLOATS, has_triton, next_power_of_2, triton_and_language
from day0.reference_ops.kda_chunked import validate

__all__ = ["CHOICES", "IMPLEMENTATIONS", "STARTS", "TILES"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next are."""
exp: Any = None
split: Any = None
product: Any = None
keep: Any = None
kept: Any = None
total: Any = None
first_block: Any = None
near_pairs: Any = None
far_pairs: Any = None
of_gates: Any = None
inside: Any = None
joined: Any = None
LOG2_E: Any = None

BLOCK = 16
CHUNK = 2 * BLOCK
"""Tokens that are worked on at once, whatever the attribute `chunk` says: it means the same for every chunk.
A NaN spoils its head from the start of such a chunk."""
GROUP = 16
"""Chunks that one program of `distant` looks at; mostly none of them is left to it."""
TILES = {
    "pair_warps": 2,
    "keys": 32,
    "values": 128,
    "warps": 8,
    "stages": 2,
    "precision": 3,
    "chunks": 1 << 14,
}
"""Key channels that a program of `prepare` works on at once, value channels of one of `across`. Precision: parts in
bfloat16 of what is multiplied, 8 bits each; with 2 the state is wrong by 1e-5 and the check says so. So many `chunks` of
all heads are prepared at once, in 1.4 GB at 128 channels; longer sequences go in parts."""
ANSWERS = 2
"""Parts of what only an output in bfloat16 comes from; with 1, lines of it are 5 times as wrong as bfloat16 makes them."""
CHOICES = {
    "pair_warps": (1, 2),
    "keys": (16, 32, 64),
    "values": (16, 32, 64, 128),
    "warps": (4, 8),
    "stages": (1, 2, 3),
    "chunks": (1 << 14, 1 << 15),
}
STARTS = (
    {"values": 128, "warps": 8, "stages": 1},
    {"values": 64, "warps": 4, "stages": 1},
    {"values": 64, "warps": 4, "stages": 2},
    {"values": 32, "warps": 4, "stages": 1},
    {"pair_warps": 2, "keys": 16},
    {"pair_warps": 1, "keys": 16},
)
"""Sizes that belong together: what fits one program to a processor, and what fits two."""
LARGEST = 256
"""Channels of a head."""


@cache
def _kernels() -> tuple[Any, Any, Any]:
    """Return the kernel for the inside of chunks, the one for those with far gates, and the one through all of them."""
    global \
        tl, \
        exp, \
        LOG2_E, \
        split, \
        product, \
        keep, \
        kept, \
        total, \
        first_block, \
        near_pairs, \
        far_pairs, \
        of_gates, \
        inside, \
        joined
    triton, tl = triton_and_language()
    exp, LOG2_E = functions().exp, tl.constexpr(1.4426950408889634)
    split, product, keep, kept = parts_of_float32()
    total, first_block, near_pairs, far_pairs = pairs_of_a_chunk()

    @triton.jit
    def of_gates(
        g, decay, far, batch, h, this, start, tokens, heads, K: tl.constexpr, KP: tl.constexpr, T: tl.constexpr,
        FAR: tl.constexpr,
    ):  # fmt: skip
        # What a chunk leaves of the state, each block of it, and the first half of the second: sums of halves of blocks.
        half, i = tl.arange(0, 4), tl.arange(0, KP)
        gates = tl.zeros([4, KP], tl.float32)
        for token in tl.static_range(T // 2):
            at = start + half * (T // 2) + token
            keys, row = (at < tokens)[:, None] & (i < K)[None, :], (batch * tokens + at) * heads + h
            gates += tl.load(g + row[:, None] * K + i[None, :], mask=keys, other=0.0).to(tl.float32)
        of_first = tl.sum(tl.where((half < 2)[:, None], gates, 0.0), 0)
        of_second = tl.sum(tl.where((half < 2)[:, None], 0.0, gates), 0)
        to_middle = tl.sum(tl.where((half == 2)[:, None], gates, 0.0), 0)
        left = decay + this * 4 * KP + i
        tl.store(left, exp(of_first + of_second))
        tl.store(left + KP, tl.exp2(of_first * LOG2_E))
        tl.store(left + 2 * KP, tl.exp2(of_second * LOG2_E))
        tl.store(left + 3 * KP, tl.exp2(to_middle * LOG2_E))
        if not FAR:
            # From the middle of a block on and back to it: beyond this a factor or its inverse would leave float32.
            tl.store(far + this, (tl.min(tl.min(gates, 1), 0) < -60.0).to(tl.int32))
        # Other threads of the program read it.
        tl.debug_barrier()

    @triton.jit
    def inside(
        q, k, g, beta, asks, writes, reads, solves, decay, far, head, chunk, first, tokens, heads, chunks,
        factor, K: tl.constexpr, KP: tl.constexpr, KEYS: tl.constexpr, C: tl.constexpr, T: tl.constexpr,
        FAR: tl.constexpr, PARTS: tl.constexpr, ANSWERS: tl.constexpr,
    ):  # fmt: skip
        # Both blocks of a chunk at once: the first dimension is that of the blocks, a warp for each.
        batch, h = head // heads, head % heads
        b, r, wide = tl.arange(0, 2), tl.arange(0, T), tl.arange(0, KEYS)
        c = b[:, None] * T + r[None, :]
        token = first + chunk * C + c
        given, row = token < tokens, (batch * tokens + token) * heads + h
        this = head * chunks + chunk
        strength = tl.load(beta + row, mask=given, other=0.0).to(tl.float32)
        of_gates(g, decay, far, batch, h, this, first + chunk * C, tokens, heads, K, KP, T, FAR)
        key_squares, query_squares = tl.zeros([2, T, KEYS], tl.float32), tl.zeros([2, T, KEYS], tl.float32)
        for start in range(0, KP, KEYS):
            i = start + wide
            keys, at = given[:, :, None] & (i < K)[None, None, :], row[:, :, None] * K + i[None, None, :]
            key = tl.load(k + at, mask=keys, other=0.0).to(tl.float32)
            query = tl.load(q + at, mask=keys, other=0.0).to(tl.float32)
            key_squares += key * key
            query_squares += query * query
        length = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(key_squares, 2) + 1e-6))
        asking = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(query_squares, 2) + 1e-6)) * factor
        read, system = tl.zeros([2, T, T], tl.float32), tl.zeros([2, T, T], tl.float32)
        read_first, system_first = tl.zeros([2, T, T], tl.float32), tl.zeros([2, T, T], tl.float32)
        second = (b == 1)[:, None, None]
        for start in range(0, KP, KEYS):
            i = start + wide
            keys, at = given[:, :, None] & (i < K)[None, None, :], row[:, :, None] * K + i[None, None, :]
            key = tl.load(k + at, mask=keys, other=0.0).to(tl.float32) * length[:, :, None]
            query = tl.load(q + at, mask=keys, other=0.0).to(tl.float32) * asking[:, :, None]
            gate = tl.load(g + at, mask=keys, other=0.0).to(tl.float32)
            # A gate that leaves nothing must not be -inf: that times 0 is NaN. From here on gates are powers of 2.
            gate = tl.where(gate < -1000.0, -1000.0, gate) * LOG2_E
            parts, place = split(gate), c[:, :, None] * KP + i[None, None, :]
            since = tl.exp2(total(r[None, :] <= r[:, None], parts))
            until = tl.exp2(total(r[None, :] > r[:, None], parts))
            left = decay + this * 4 * KP + i[None, None, :]
            before, after, to_middle = tl.load(left + KP), tl.load(left + 2 * KP), tl.load(left + 3 * KP)
            passed = tl.where(second, since * before, since)
            # Parts of queries and keys together: what multiplies the same parts of the state is one product.
            asked = asks + this * (PARTS + ANSWERS) * C * KP + place
            large, middle, small = split(query * passed)
            tl.store(asked, large)
            tl.store(asked + C * KP, middle)
            keep(asked + 2 * C * KP, C * KP, key * passed, PARTS)
            if ANSWERS == 3:
                tl.store(asked + (2 + PARTS) * C * KP, small)
            keep(writes + this * PARTS * C * KP + place, C * KP, key * tl.where(second, until, until * after), PARTS)
            if FAR:
                read, system, read_first, system_first = far_pairs(
                    k, g, at, heads * K, keys, length, key, query, since, until, read, system, read_first, system_first,
                    r, T, PARTS, ANSWERS,
                )  # fmt: skip
            else:
                read, system, read_first, system_first = near_pairs(
                    key, query, parts, until * to_middle, read, system, read_first, system_first, r, T, PARTS, ANSWERS
                )
        on, off = b[:, None, None] * T, (1 - b)[:, None, None] * T
        pairs = c[:, :, None] * C + r[None, None, :]
        reads += this * ANSWERS * C * C + pairs
        keep(reads + on, C * C, tl.where((r[:, None] >= r[None, :])[None, :, :], read, 0.0), ANSWERS)
        keep(reads + off, C * C, tl.where(second, read_first, 0.0), ANSWERS)
        below = (r[:, None] > r[None, :])[None, :, :]
        system = tl.where(below, system * strength[:, :, None], 0.0)
        system_first = tl.where(second, system_first * strength[:, :, None], 0.0)
        # The inverse: of pairs, then of twice as many tokens, whose corner is minus two products.
        inverse = tl.where((r[:, None] == r[None, :])[None, :, :], 1.0, 0.0)
        inverse = inverse - tl.where(((r // 2)[:, None] == (r // 2)[None, :])[None, :, :], system, 0.0)
        zero = tl.zeros([2, T, T], tl.float32)
        for level in range(1, 4):
            part = r >> level
            here = ((part % 2 == 1)[:, None] & (part[:, None] == part[None, :] + 1))[None, :, :]
            parts = split(inverse)
            corner = product(split(tl.where(here, system, 0.0)), parts, zero, PARTS)
            inverse -= product(parts, split(corner), zero, PARTS)
        corner = product(split(system_first), split(first_block(inverse)), zero, PARTS)
        corner = zero - product(split(inverse), split(corner), zero, PARTS)
        solves += this * PARTS * C * C + pairs
        columns = tl.load(beta + row, mask=given, other=0.0).to(tl.float32)[:, None, :]
        keep(solves + on, C * C, inverse * columns, PARTS)
        first_columns = tl.sum(tl.where((b == 0)[:, None, None], columns, 0.0), 0)[None, :, :]
        keep(solves + off, C * C, corner * first_columns, PARTS)

    @triton.jit
    def prepare(
        q, k, g, beta, asks, writes, reads, solves, decay, far, first, tokens, heads, chunks, factor,
        K: tl.constexpr, KP: tl.constexpr, KEYS: tl.constexpr, C: tl.constexpr, T: tl.constexpr,
        PARTS: tl.constexpr, ANSWERS: tl.constexpr,
    ):  # fmt: skip
        head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
        inside(
            q, k, g, beta, asks, writes, reads, solves, decay, far, head, chunk, first, tokens, heads, chunks,
            factor, K, KP, KEYS, C, T, False, PARTS, ANSWERS,
        )  # fmt: skip

    @triton.jit
    def distant(
        q, k, g, beta, asks, writes, reads, solves, decay, far, first, tokens, heads, chunks, factor,
        K: tl.constexpr, KP: tl.constexpr, KEYS: tl.constexpr, C: tl.constexpr, T: tl.constexpr,
        PARTS: tl.constexpr, ANSWERS: tl.constexpr, GROUP: tl.constexpr,
    ):  # fmt: skip
        head, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * GROUP
        ahead = start + tl.arange(0, GROUP)
        left = tl.max(tl.load(far + head * chunks + ahead, mask=ahead < chunks, other=0), 0)
        for chunk in range(start, start + left * min(GROUP, chunks - start)):
            if tl.load(far + head * chunks + chunk) == 1:
                inside(
                    q, k, g, beta, asks, writes, reads, solves, decay, far, head, chunk, first, tokens, heads,
                    chunks, factor, K, KP, KEYS, C, T, True, PARTS, ANSWERS,
                )  # fmt: skip

    @triton.jit
    def joined(a, at, C: tl.constexpr, PARTS: tl.constexpr):
        # With two parts that lie one behind the other as one product, then what else 24 bits need.
        c, more = tl.arange(0, C), tl.arange(0, 2 * C)
        two = tl.trans(tl.load(at + more[:, None] * C + c[None, :]))
        found = tl.dot(a[0], two, tl.dot(a[1], two))
        found = tl.sum(tl.reshape(found, [found.shape[0], 2, C]), 1)
        if PARTS == 3:
            at += c[:, None] * C + c[None, :]
            small = tl.dot(a[2], tl.trans(tl.load(at)))
            found += tl.dot(a[0], tl.trans(tl.load(at + 2 * C * C)), small)
        return found

    @triton.jit
    def across(
        v, asks, writes, reads, solves, decay, state, new, out, first, tokens, heads, chunks, step_k, step_v, to_k, to_v,
        K: tl.constexpr, KP: tl.constexpr, V: tl.constexpr, VALUES: tl.constexpr, C: tl.constexpr,
        PARTS: tl.constexpr, ANSWERS: tl.constexpr,
    ):  # fmt: skip
        head = tl.program_id(0).to(tl.int64)
        batch, h = head // heads, head % heads
        c, i, j = tl.arange(0, C), tl.arange(0, KP), tl.program_id(1) * VALUES + tl.arange(0, VALUES)
        # The state lies with its values first: products then have VALUES rows, whatever the chunk.
        inner = (j < V)[:, None] & (i < K)[None, :]
        at_state = head * K * V + j[:, None] * step_v + i[None, :] * step_k
        held = tl.load(state + at_state, mask=inner, other=0.0).to(tl.float32)
        wide, four = c[:, None] * KP + i[None, :], tl.arange(0, 4 * C)[:, None] * KP + i[None, :]
        for chunk in range(chunks):
            this = head * chunks + chunk
            token = first + chunk * C + c
            shown = (j < V)[:, None] & (token < tokens)[None, :]
            at = ((batch * tokens + token) * heads + h)[None, :] * V + j[:, None]
            value = tl.load(v + at, mask=shown, other=0.0).to(tl.float32)
            before, asked = split(held), asks + this * (PARTS + ANSWERS) * C * KP
            # Two parts of queries and two of keys against two parts of the state; then what else 24 bits need.
            many = tl.trans(tl.load(asked + four))
            found = tl.reshape(tl.dot(before[0], many, tl.dot(before[1], many)), [VALUES, 2, 2, C])
            result, lost = tl.split(tl.permute(found, (0, 2, 3, 1)))
            result, lost = tl.sum(result, 1), tl.sum(lost, 1)
            if PARTS == 3:
                small = tl.dot(before[2], tl.trans(tl.load(asked + 2 * C * KP + wide)))
                lost += tl.dot(before[0], tl.trans(tl.load(asked + 4 * C * KP + wide)), small)
            if ANSWERS == 3:
                small = tl.dot(before[2], tl.trans(tl.load(asked + wide)))
                result += tl.dot(before[0], tl.trans(tl.load(asked + (2 + PARTS) * C * KP + wide)), small)
            change = split(joined(split(value - lost), solves + this * PARTS * C * C, C, PARTS))
            # What the state before the chunk says to its queries, and what its own tokens have written since.
            result += joined(change, reads + this * ANSWERS * C * C, C, ANSWERS)
            tl.store(out + at, result.to(out.dtype.element_ty), mask=shown)
            whole = tl.load(decay + this * 4 * KP + i)
            left = kept(writes + this * PARTS * C * KP + wide, C * KP, PARTS)
            held = product(change, left, held * whole[None, :], PARTS)
        at_state = head * K * V + j[:, None] * to_v + i[None, :] * to_k
        tl.store(new + at_state, held.to(new.dtype.element_ty), mask=inner)

    return prepare, distant, across


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
    q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH = inputs
    values, rows, wide = out_BSHV.shape[-1], batch * heads, next_power_of_2(keys, 16)
    parts = tile["precision"]
    answers = ANSWERS if out_BSHV.dtype == torch.bfloat16 else parts

    def scratch(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(rows, chunks, *shape, dtype=dtype, device=out_BSHV.device)

    asks, writes = (scratch(number, CHUNK, wide) for number in (parts + answers, parts))
    reads, solves = (scratch(number, CHUNK, CHUNK) for number in (answers, parts))
    decay, far = scratch(4, wide, dtype=torch.float32), scratch(dtype=torch.int32)
    made, counts = (asks, writes, reads, solves, decay), (first, tokens, heads, chunks)
    shapes = {"K": keys, "KP": wide, "C": CHUNK, "PARTS": parts, "ANSWERS": answers}
    prepare, distant, across = _kernels()
    if chunks:
        given = (q_BSHK, k_BSHK, g_BSHK, beta_BSH, *made, far, *counts, keys**-0.5)
        pairs = {"KEYS": min(tile["keys"], wide), "T": BLOCK, "num_stages": 1, **shapes}
        prepare[(rows, chunks)](*given, num_warps=tile["pair_warps"], **pairs)
        distant[(rows, -(-chunks // GROUP))](*given, GROUP=GROUP, num_warps=tile["pair_warps"], **pairs)
    size, stages = _of_a_program(tile, rows, wide, next_power_of_2(values, 16), out_BSHV.device)
    across[(rows, -(-values // size))](
        v_BSHV, *made, state, new, out_BSHV, *counts, *steps,
        V=values, VALUES=size, num_warps=tile["warps"], num_stages=stages if answers < 3 else 1, **shapes,
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
        version="2.1",
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

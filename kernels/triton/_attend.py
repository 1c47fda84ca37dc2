"""Attention of latent queries to chosen rows, for the prefill and the decode form: rows are gathered in tiles.

A list of rows is split into parts where queries alone would leave most of a device idle; parts are joined afterwards.

Shape suffixes: B batch, S queries, H heads, K chosen rows, L latent, C = L + R row width.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from day0.kernels.triton._triton import triton_and_language

__all__ = ["FP8_584", "FP8_656", "LN_2", "LOG2_E", "PLAIN", "attend_functions"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next are."""
load_codes: Any = None
load_rope: Any = None

LOG2_E, LN_2 = 1.0 / math.log(2.0), math.log(2.0)
PLAIN, FP8_656, FP8_584 = 0, 1, 2
"""Layouts of a row as the kernels know them."""


@cache
def attend_functions() -> tuple[Any, Any]:
    """Return the kernel that attends to a part of the rows, and the one that joins parts."""
    global tl, load_codes, load_rope
    triton, tl = triton_and_language()

    @triton.jit
    def load_codes(
        at,
        scales,
        taken,
        L: tl.constexpr,
        LP: tl.constexpr,
        TILE: tl.constexpr,
        GROUP: tl.constexpr,
        SCALES: tl.constexpr,
        LAYOUT: tl.constexpr,
        ALIGNED: tl.constexpr,
        DTYPE: tl.constexpr,
    ):
        l = tl.arange(0, LP)
        s = tl.arange(0, LP // GROUP)
        code = tl.load(at[:, None] + l[None, :], mask=taken[:, None] & (l < L)[None, :], other=0)
        inside = taken[:, None] & (s < SCALES)[None, :]
        if LAYOUT == 2:
            byte = tl.load(scales[:, None] + s[None, :], mask=inside, other=127).to(tl.int32)
            bits = tl.where(byte == 0, 0x400000, byte << 23)
            scale = tl.where(byte == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)
        elif ALIGNED:
            words = scales.to(tl.pointer_type(tl.float32))
            scale = tl.load(words[:, None] + s[None, :], mask=inside, other=1.0)
        else:
            bits = tl.zeros([TILE, LP // GROUP], tl.int32)
            for byte in tl.static_range(4):
                part = tl.load(scales[:, None] + 4 * s[None, :] + byte, mask=inside, other=0)
                bits = bits | (part.to(tl.int32) << (8 * byte))
            scale = bits.to(tl.float32, bitcast=True)
        spread = tl.reshape(tl.broadcast_to(scale[:, :, None], (TILE, LP // GROUP, GROUP)), (TILE, LP))
        value = code.to(tl.float8e4nv, bitcast=True).to(tl.float32) * spread
        # Codes of padding are 0, and a scale that is NaN would spoil them.
        return tl.where(taken[:, None] & (l < L)[None, :], value, 0.0).to(DTYPE)

    @triton.jit
    def load_rope(at, taken, R: tl.constexpr, RP: tl.constexpr, ALIGNED: tl.constexpr, DTYPE: tl.constexpr):
        r = tl.arange(0, RP)
        inside = taken[:, None] & (r < R)[None, :]
        if ALIGNED:
            halves = at.to(tl.pointer_type(tl.bfloat16))
            return tl.load(halves[:, None] + r[None, :], mask=inside, other=0.0).to(DTYPE)
        low = tl.load(at[:, None] + 2 * r[None, :], mask=inside, other=0).to(tl.uint16)
        high = tl.load(at[:, None] + 2 * r[None, :] + 1, mask=inside, other=0).to(tl.uint16)
        return ((high << 8) | low).to(tl.uint16).to(tl.bfloat16, bitcast=True).to(DTYPE)

    return _attend(triton), _join(triton)


def _attend(triton: Any) -> Any:
    @triton.jit
    def attend(
        q,
        rows,
        indices,
        length,
        bitmap,
        sink,
        part,
        log,
        most,
        queries,
        heads,
        chosen,
        number,
        each,
        page,
        blocks,
        step_batch,
        step_page,
        step_row,
        scales_at,
        length_batch,
        length_query,
        lse_batch,
        lse_query,
        lse_head,
        scale,
        C: tl.constexpr,
        L: tl.constexpr,
        LP: tl.constexpr,
        R: tl.constexpr,
        RP: tl.constexpr,
        HEADS: tl.constexpr,
        TILE: tl.constexpr,
        PARTS: tl.constexpr,
        LAYOUT: tl.constexpr,
        ALIGNED: tl.constexpr,
        GROUP: tl.constexpr,
        SCALES: tl.constexpr,
        SCALE_BYTES: tl.constexpr,
        LENGTH: tl.constexpr,
        BITMAP: tl.constexpr,
        SINK: tl.constexpr,
        MOST: tl.constexpr,
    ):
        query = tl.program_id(0).to(tl.int64)
        batch = query // queries
        h = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
        l, r = tl.arange(0, LP), tl.arange(0, RP)
        at_q = q + (query * heads + h)[:, None] * C
        real = (h < heads)[:, None]
        q_latent = tl.load(at_q + l[None, :], mask=real & (l < L)[None, :], other=0.0)
        q_rope = tl.load(at_q + L + r[None, :], mask=real & (r < R)[None, :], other=0.0)
        total = tl.zeros([HEADS, LP], tl.float32)
        largest = tl.full([HEADS], float("-inf"), tl.float32)
        weights = tl.zeros([HEADS], tl.float32)
        begin = tl.program_id(2) * each
        end = tl.minimum(begin + each, chosen)
        if LENGTH:
            end = tl.minimum(end, tl.load(length + batch * length_batch + (query % queries) * length_query))
        for first in range(begin, end, TILE):
            place = first + tl.arange(0, TILE)
            row = tl.load(indices + query * chosen + place, mask=place < end, other=-1)
            taken = (row >= 0) & (row < number)
            row = tl.where(taken, row, 0)
            block = row // page
            if BITMAP:
                taken = taken & (tl.load(bitmap + batch * blocks + block, mask=taken, other=0) != 0)
            at = rows + batch * step_batch + block.to(tl.int64) * step_page
            offset = (row - block * page).to(tl.int64)
            if LAYOUT == 0:
                at = at + offset * step_row
                latent = tl.load(at[:, None] + l[None, :], mask=taken[:, None] & (l < L)[None, :], other=0.0)
                rope = tl.load(at[:, None] + L + r[None, :], mask=taken[:, None] & (r < R)[None, :], other=0.0)
            else:
                # Behind the codes, or behind all rows of the page.
                scales = at + offset * step_row + L if LAYOUT == 1 else at + scales_at + offset * SCALE_BYTES
                at = at + offset * step_row
                latent = load_codes(at, scales, taken, L, LP, TILE, GROUP, SCALES, LAYOUT, ALIGNED, q_latent.dtype)
                rope_at = L + 4 * SCALES if LAYOUT == 1 else L
                rope = load_rope(at + rope_at, taken, R, RP, ALIGNED, q_latent.dtype)
            score = tl.dot(q_rope, tl.trans(rope), tl.dot(q_latent, tl.trans(latent)))
            score = tl.where(taken[None, :], score * scale, float("-inf"))
            new = tl.maximum(largest, tl.max(score, 1))
            base = tl.where(new == float("-inf"), 0.0, new)
            weight = tl.exp2(score - base[:, None])
            kept = tl.exp2(largest - base)
            weights = weights * kept + tl.sum(weight, 1)
            total = tl.dot(weight.to(latent.dtype), latent, total * kept[:, None])
            largest = new
        none = weights == 0.0
        total = total / tl.where(none, 1.0, weights)[:, None]
        if PARTS == 1:
            natural = (largest + tl.log2(tl.where(none, 1.0, weights))) * 0.6931471805599453
            if SINK:
                kept = 1.0 / (1.0 + tl.exp(tl.load(sink + h, mask=h < heads, other=0.0) - natural))
                total = total * tl.where(none, 1.0, kept)[:, None]
            at = (query * heads + h)[:, None] * L
            tl.store(part + at + l[None, :], total.to(part.dtype.element_ty), mask=real & (l < L)[None, :])
            to = batch * lse_batch + (query % queries) * lse_query + h * lse_head
            tl.store(log + to, tl.where(none, float("inf"), natural), mask=h < heads)
            if MOST:
                # A maximum may leave NaN out; the sum does not.
                best = tl.where(weights <= float("inf"), largest * 0.6931471805599453, weights)
                tl.store(most + to, best, mask=h < heads)
        else:
            at = (query * heads + h) * PARTS + tl.program_id(2)
            tl.store(part + at[:, None] * L + l[None, :], total, mask=real & (l < L)[None, :])
            tl.store(log + at, tl.where(none, float("-inf"), largest + tl.log2(weights)), mask=h < heads)

    return attend


def _join(triton: Any) -> Any:
    @triton.jit
    def join(
        part,
        log,
        sink,
        out,
        lse,
        queries,
        heads,
        L: tl.constexpr,
        LP: tl.constexpr,
        PARTS: tl.constexpr,
        SINK: tl.constexpr,
    ):
        query, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
        l = tl.arange(0, LP)
        at = (query * heads + h) * PARTS
        largest = float("-inf")
        for one in range(PARTS):
            largest = tl.maximum(largest, tl.load(log + at + one))
        base = tl.where(largest == float("-inf"), 0.0, largest)
        total = tl.zeros([LP], tl.float32)
        weights = 0.0
        for one in range(PARTS):
            weight = tl.exp2(tl.load(log + at + one) - base)
            weights += weight
            total += weight * tl.load(part + (at + one) * L + l, mask=l < L, other=0.0)
        none = weights == 0.0
        natural = (base + tl.log2(tl.where(none, 1.0, weights))) * 0.6931471805599453
        total = total / tl.where(none, 1.0, weights)
        if SINK:
            total = total * tl.where(none, 1.0, tl.sigmoid(natural - tl.load(sink + h)))
        tl.store(out + (query * heads + h) * L + l, total.to(out.dtype.element_ty), mask=l < L)
        to = ((query // queries) * heads + h) * queries + query % queries
        tl.store(lse + to, tl.where(none, float("inf"), natural))

    return join

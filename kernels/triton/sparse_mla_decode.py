"""day0::sparse_mla_decode in Triton: chosen rows are gathered in tiles, each request split over many programs.

Shape suffixes: B batch, S queries, H heads, P pages, G rows of a page, K chosen rows, L latent, C = L + R row width.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch

from day0.implementation import Constraints, Implementation, Limit, TensorLimit
from day0.kernels.triton._triton import HALVES, has_triton, next_power_of_2, triton_and_language
from day0.reference_ops.sparse_mla_decode import valid_entries, validate

__all__ = ["IMPLEMENTATIONS"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call."""

ROWS, WARPS, STAGES = 64, 8, 2
"""Rows of a tile: 64 of 576 values, beside 64 heads, fill the shared memory of an H200."""
LOG2_E, LN_2 = 1.0 / math.log(2.0), math.log(2.0)


@cache
def _kernels() -> tuple[Any, Any]:
    """Return the kernel that attends to a part of the rows, and the one that joins the parts."""
    global tl
    triton, tl = triton_and_language()

    @triton.jit
    def attend(
        q,
        rows,
        indices,
        part,
        log,
        heads,
        chosen,
        number,
        each,
        scale,
        C: tl.constexpr,
        L: tl.constexpr,
        LP: tl.constexpr,
        R: tl.constexpr,
        RP: tl.constexpr,
        HEADS: tl.constexpr,
        TILE: tl.constexpr,
        PARTS: tl.constexpr,
    ):
        query = tl.program_id(0).to(tl.int64)
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
        for first in range(begin, end, TILE):
            place = first + tl.arange(0, TILE)
            row = tl.load(indices + query * chosen + place, mask=place < end, other=-1)
            taken = (row >= 0) & (row < number)
            at = rows + tl.where(taken, row, 0).to(tl.int64)[:, None] * C
            latent = tl.load(at + l[None, :], mask=taken[:, None] & (l < L)[None, :], other=0.0)
            rope = tl.load(at + L + r[None, :], mask=taken[:, None] & (r < R)[None, :], other=0.0)
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
        at = (query * heads + h) * PARTS + tl.program_id(2)
        total = total / tl.where(none, 1.0, weights)[:, None]
        tl.store(part + at[:, None] * L + l[None, :], total, mask=real & (l < L)[None, :])
        tl.store(log + at, tl.where(none, float("-inf"), largest + tl.log2(weights)), mask=h < heads)

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

    return attend, join


def decode(
    q_BSHC: torch.Tensor,
    pages_PGC: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    layout: str = "plain",
    topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    bitmap: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out [B, S, H, L] in the dtype of q and the natural log-sum-exp [B, H, S] in float32."""
    _, page = validate(q_BSHC, pages_PGC, indices_BSK, latent, scale, layout, topk_length, attn_sink, bitmap)
    batch, queries, heads, width = q_BSHC.shape
    chosen = indices_BSK.shape[-1]
    out_BSHL = q_BSHC.new_empty((batch, queries, heads, latent))
    lse_BHS = q_BSHC.new_empty((batch, heads, queries), dtype=torch.float32)
    number = pages_PGC.shape[0] * page
    if not out_BSHL.numel():
        return out_BSHL, lse_BHS
    if not chosen or not number:
        return out_BSHL.zero_(), lse_BHS.fill_(float("inf"))
    if topk_length is not None or bitmap is not None:
        indices_BSK = valid_entries(indices_BSK, pages_PGC.shape[0], page, topk_length, bitmap)
    q_BSHC, pages_PGC, indices_BSK = q_BSHC.contiguous(), pages_PGC.contiguous(), indices_BSK.contiguous()
    tile = min(64, next_power_of_2(heads, 16))
    blocks = -(-heads // tile)
    each, parts = _parts(batch * queries * blocks, chosen, q_BSHC.device)
    part = torch.empty(batch * queries * heads * parts, latent, dtype=torch.float32, device=q_BSHC.device)
    log = torch.empty(batch * queries * heads * parts, dtype=torch.float32, device=q_BSHC.device)
    attend, join = _kernels()
    sizes = {"L": latent, "LP": next_power_of_2(latent, 16), "PARTS": parts}
    rope = {"R": width - latent, "RP": next_power_of_2(width - latent, 16)}
    attend[(batch * queries, blocks, parts)](
        q_BSHC,
        pages_PGC,
        indices_BSK,
        part,
        log,
        heads,
        chosen,
        number,
        each,
        scale * LOG2_E,
        C=width,
        HEADS=tile,
        TILE=ROWS,
        num_warps=WARPS,
        num_stages=STAGES,
        **sizes,
        **rope,
    )
    sink = log if attn_sink is None else attn_sink.contiguous()
    join[(batch * queries, heads)](
        part, log, sink, out_BSHL, lse_BHS, queries, heads, SINK=attn_sink is not None, num_warps=4, **sizes
    )
    return out_BSHL, lse_BHS


def _parts(programs: int, chosen: int, device: torch.device) -> tuple[int, int]:
    """Return how many rows a part has, and how many parts: as many as the device runs at once."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    parts = max(1, min(-(-chosen // ROWS), processors // programs))
    each = math.ceil(chosen / parts / ROWS) * ROWS
    return each, -(-chosen // each)


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::sparse_mla_decode",
        contract=1,
        id="triton",
        version="1.0",
        kind="kernel",
        run=decode,
        why="gathers chosen rows in tiles for a matrix unit; one request is split over the whole device",
        devices=("cuda",),
        constraints=Constraints(
            first_dtype=HALVES,
            arguments={
                "q": TensorLimit(sizes={-1: Limit(at_most=640)}),
                "pages": TensorLimit(dtypes=HALVES),
                "latent": Limit(at_least=1, at_most=512),
                "layout": Limit(one_of=("plain",)),
            },
        ),
        predicate=has_triton,
        rank=50,
    ),
)

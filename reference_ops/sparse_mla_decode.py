"""Attention of a few latent queries over chosen rows of a paged latent cache: the truly sparse form.

Shape suffixes: B batch, S queries, H heads, P pages, G rows of a page, K chosen rows, L latent, C = L + R row width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops import _cache_layouts as layouts
from day0.reference_ops._checks import Arguments
from day0.reference_ops._sparse_attention import (
    attend,
    check_sink,
    chosen_rows,
    fill_choice,
    finish,
    first_entries,
    wide_dtype,
)
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["OP", "fake", "reference", "validate"]

NAME = "day0::sparse_mla_decode"


def validate(
    q_BSHC: torch.Tensor,
    pages: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    layout: str = "plain",
    topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    bitmap: torch.Tensor | None = None,
) -> tuple[layouts.Layout, int]:
    """Refuse arguments that break the contract; return the layout and how many rows a page has."""
    check = Arguments(NAME)
    check.shape("q", q_BSHC, "BSHC")
    check.shape("indices", indices_BSK, "BSK")
    check.floating("q", q_BSHC)
    check.dtype("indices", indices_BSK, torch.int32)
    found = layouts.read_layout(check, layout, latent, q_BSHC.shape[-1])
    page = layouts.check_pages(check, pages, found)
    check.sizes["P"] = pages.shape[0]
    if topk_length is not None:
        check.shape("topk_length", topk_length, "B")
        check.dtype("topk_length", topk_length, torch.int32)
    check_sink(check, attn_sink, q_BSHC)
    if bitmap is not None:
        check.shape("bitmap", bitmap, "BP")
        check.dtype("bitmap", bitmap, torch.bool)
    check.true("scale", 0 < scale < float("inf"), "a positive number", scale)
    return found, page


def reference(
    q_BSHC: torch.Tensor,
    pages: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    layout: str = "plain",
    topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    bitmap: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out [B, S, H, L] in the dtype of q and the natural log-sum-exp [B, H, S] wide: heads before queries.

    An index is page number times rows of a page plus row in the page. It is no row below 0, beyond the cache, behind
    the first `topk_length` [B] entries, and on a page that `bitmap` [B, P] does not mark. A query without a row gives
    0 and +inf. Only pages on which a request chose something are read, one after the other.
    """
    found, page = validate(q_BSHC, pages, indices_BSK, latent, scale, layout, topk_length, attn_sink, bitmap)
    wide = wide_dtype(q_BSHC)
    indices_BSK = valid_entries(indices_BSK, pages.shape[0], page, topk_length, bitmap)
    pieces = layouts.views(pages, found, page)
    outputs, sums = [], []
    for request in range(q_BSHC.shape[0]):
        out_1SHL, lse_1SH = nothing(q_BSHC[request : request + 1].to(wide), latent)
        for block in blocks_of(indices_BSK[request], page):
            rows_1GC = layouts.unpack(tuple(piece[block] for piece in pieces), found, wide)[None]
            here_1SK = indices_BSK[request : request + 1] - block * page
            chosen_1SG = chosen_rows(here_1SK, page)
            part = attend(q_BSHC[request : request + 1].to(wide), rows_1GC, chosen_1SG, latent, scale)
            out_1SHL, lse_1SH = merge(out_1SHL, lse_1SH, part[0], part[2])
        out_1SHL, lse_1SH = finish(out_1SHL, lse_1SH, attn_sink)
        outputs.append(out_1SHL.to(q_BSHC.dtype))
        sums.append(lse_1SH.transpose(1, 2))
    if not outputs:
        return fake(q_BSHC, pages, indices_BSK, latent, scale, layout)
    return torch.cat(outputs), torch.cat(sums).contiguous()


def valid_entries(
    indices_BSK: torch.Tensor,
    pages: int,
    page: int,
    topk_length: torch.Tensor | None,
    bitmap_BP: torch.Tensor | None,
) -> torch.Tensor:
    """Return the indices with -1 for all that are no rows."""
    indices_BSK = first_entries(indices_BSK, None if topk_length is None else topk_length[:, None, None])
    # In int64: a large cache has more rows than int32 counts, and a number beyond it would wrap.
    valid_BSK = (indices_BSK >= 0) & (indices_BSK.to(torch.int64) < pages * page)
    if bitmap_BP is not None and pages:
        block_BN = torch.where(valid_BSK, indices_BSK // page, 0).to(torch.int64).flatten(1)
        valid_BSK = valid_BSK & bitmap_BP.gather(1, block_BN).reshape(valid_BSK.shape)
    return torch.where(valid_BSK, indices_BSK, -1)


def blocks_of(indices_SK: torch.Tensor, page: int) -> list[int]:
    """Return the pages that one request reads, rising."""
    found: list[int] = torch.unique(torch.where(indices_SK < 0, -1, indices_SK // page)).tolist()
    return [block for block in found if block >= 0]


def nothing(q_BSHC: torch.Tensor, latent: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what attention to no rows gives before `finish`: 0 and -inf."""
    out_BSHL = q_BSHC.new_zeros((*q_BSHC.shape[:3], latent))
    return out_BSHL, q_BSHC.new_full(q_BSHC.shape[:3], float("-inf"))


def merge(
    out_BSHL: torch.Tensor, lse_BSH: torch.Tensor, other_BSHL: torch.Tensor, other_BSH: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention over two disjoint sets of rows from that over each: weights by the natural log-sum-exp."""
    both_BSH = torch.logaddexp(lse_BSH, other_BSH)
    base_BSH = torch.where(torch.isneginf(both_BSH), 0.0, both_BSH)
    mine_BSH1, theirs_BSH1 = (lse_BSH - base_BSH).exp()[..., None], (other_BSH - base_BSH).exp()[..., None]
    return out_BSHL * mine_BSH1 + other_BSHL * theirs_BSH1, both_BSH


def fake(
    q_BSHC: torch.Tensor,
    pages: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    *rest: Any,
    **named: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    validate(q_BSHC, pages, indices_BSK, latent, scale, *rest, **named)
    batch, queries, heads, _ = q_BSHC.shape
    lse_BHS = q_BSHC.new_empty((batch, heads, queries), dtype=wide_dtype(q_BSHC))
    return q_BSHC.new_empty((batch, queries, heads, latent)), lse_BHS


def flops(
    q_BSHC: torch.Tensor,
    pages: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    *rest: Any,
    **named: Any,
) -> int:
    """Scores and sums over the chosen rows alone."""
    batch, queries, heads, width = q_BSHC.shape
    return int(2 * batch * queries * heads * indices_BSK.shape[-1] * (width + latent))


def moved_bytes(
    q_BSHC: torch.Tensor,
    pages: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    layout: str = "plain",
    *rest: Any,
    **named: Any,
) -> int:
    """Queries, indices and results once; of the cache no more rows than were chosen, as they are stored."""
    found, page = validate(q_BSHC, pages, indices_BSK, latent, scale, layout, *rest, **named)
    stored = found.width * pages.element_size() if found.kind == "plain" else found.data_bytes + found.scale_bytes
    batch, queries, heads, _ = q_BSHC.shape
    read = min(pages.shape[0] * page, batch * queries * indices_BSK.shape[-1]) * stored
    results = batch * queries * heads * (latent * q_BSHC.element_size() + wide_dtype(q_BSHC).itemsize)
    given = (q_BSHC, indices_BSK, *(one for one in (*rest, *named.values()) if one is not None))
    return int(sum(one.numel() * one.element_size() for one in given) + read + results)


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Rows in every place of the pages, distinct places for each query, a number of valid entries for each request."""
    q_BSHC, pages, indices_BSK, latent, scale = args[:5]
    layout = kwargs.get("layout", args[5] if len(args) > 5 else "plain")
    found, page = validate(q_BSHC, pages, indices_BSK, latent, scale, layout)
    layouts.fill_pages(pages, found, page, generator)
    fill_choice(indices_BSK, pages.shape[0] * page, generator)
    length_B = kwargs.get("topk_length", args[6] if len(args) > 6 else None)
    if length_B is not None:
        length_B.copy_(torch.randint(0, indices_BSK.shape[-1] + 1, length_B.shape, generator=generator))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Plain pages; odd sizes with all options in FP8; one page, no page; the rows and heads of two real models."""
    for kind, (batch, queries, heads, pages, page, chosen, latent, rope), layout, dtype in (
        ("small", (1, 2, 2, 3, 4, 4, 8, 4), "plain", torch.float32),
        ("odd", (3, 2, 3, 5, 3, 7, 5, 3), "fp8_656", torch.bfloat16),
        ("corner", (2, 1, 1, 1, 2, 2, 1, 0), "fp8_584:2", torch.float32),
        ("corner", (1, 1, 2, 0, 2, 3, 2, 1), "plain", torch.float32),
        ("traced", (2, 1, 64, 4, 64, 64, 512, 64), "fp8_656", torch.bfloat16),
        ("traced", (2, 1, 64, 4, 64, 64, 448, 64), "fp8_584:64", torch.bfloat16),
    ):
        q_BSHC = torch.randn(batch, queries, heads, latent + rope, generator=generator).to(dtype)
        found = layouts.read_layout(Arguments(NAME), layout, latent, latent + rope)
        stored = dtype if layout == "plain" else torch.uint8
        cache = torch.zeros(pages, *layouts.page_shape(found, page), dtype=stored)
        if layout == "plain":
            cache.copy_(torch.randn(cache.shape, generator=generator))
        indices_BSK = torch.full((batch, queries, chosen), -1, dtype=torch.int32)
        args: tuple[Any, ...] = (q_BSHC, cache, indices_BSK, latent, (latent + rope) ** -0.5, layout)
        fill(args, {}, generator)
        if kind == "odd":
            bitmap_BP = torch.tensor([[True, True, False, True, True], [True] * 5, [False] * 5])
            length_B = torch.tensor([7, 3, 7], dtype=torch.int32)
            args = (*args, length_B, torch.tensor([0.5, float("inf"), float("-inf")]), bitmap_BP)
            indices_BSK[0, 0, -1] = pages * page
        if kind == "corner" and pages:
            indices_BSK.copy_(torch.tensor([[[1, 0]], [[-1, 1]]]))
        yield Sample(kind=kind, args=args, kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="sparse multi-head latent attention over chosen rows of a paged cache, few queries",
    schema='(Tensor q, Tensor pages, Tensor indices, int latent, float scale, str layout="plain", '
    "Tensor? topk_length=None, Tensor? attn_sink=None, Tensor? bitmap=None) -> (Tensor, Tensor)",
    mathematics="p = softmax over chosen j of scale q.kv_j; out = sum_j p_j kv_j[:L], times "
    "exp(lse) / (exp(lse) + exp(sink)) with a sink; lse = ln sum_j exp of the scores; nothing chosen: 0, +inf",
    source="FlashMLA's interface for sparse decoding; its documented cache layouts",
    reference=reference,
    fake=fake,
    flops=flops,
    bytes=moved_bytes,
    fill=fill,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=16.0,
        reason="one softmax and two sums in float32, merged from parts: 8 ULP for another order of the sums and another "
        "exponential, 8 more for other parts, each of which is scaled once more",
    ),
    attributes=(
        Attribute(name="latent", meaning="how much of a row is value; the rest takes part in the score only"),
        Attribute(name="scale", meaning="of the score, usually (nope + rope)^-1/2, times mscale^2 under YaRN"),
        Attribute(name="layout", meaning="plain, fp8_656, or fp8_584:G with G rows in a page (64 without it)"),
        Attribute(name="topk_length", meaning="how many entries of a request's lists count; all without it"),
        Attribute(name="attn_sink", meaning="a learned score without a value for each head; none without it"),
        Attribute(name="bitmap", meaning="which pages a request may read; all without it"),
        Attribute(name="invalid rows", meaning="-1 or any number beyond the cache; valid ones are distinct"),
        Attribute(name="lse", meaning="natural logarithm, without the sink, heads before queries"),
    ),
    verified_against="torch scaled_dot_product_attention; transformers gpt_oss (sink); day0::sparse_mla_prefill",
)

"""Attention of many latent queries over chosen rows of a latent cache (absorbed form).

Shape suffixes: B batch, S queries, H heads, T cache rows, K chosen rows, L latent, C = L + R row width.
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

__all__ = ["OP", "fake", "quantised", "reference", "validate"]

NAME = "day0::sparse_mla_prefill"
Results = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def validate(
    q_BSHC: torch.Tensor,
    kv_BTC: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("q", q_BSHC, "BSHC")
    check.shape("kv", kv_BTC, "BTC")
    check.shape("indices", indices_BSK, "BSK")
    check.floating("q", q_BSHC)
    check.dtype("kv", kv_BTC, q_BSHC.dtype)
    check.dtype("indices", indices_BSK, torch.int32)
    if topk_length is not None:
        check.shape("topk_length", topk_length, "BS")
        check.dtype("topk_length", topk_length, torch.int32)
    check_sink(check, attn_sink, q_BSHC)
    width = q_BSHC.shape[-1]
    check.true("latent", 0 < latent <= width, f"1 to the row width {width}", latent)
    check.true("scale", 0 < scale < float("inf"), "a positive number", scale)


def reference(
    q_BSHC: torch.Tensor,
    kv_BTC: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
) -> Results:
    """Return out [B, S, H, L] in the dtype of q; the largest score and the natural log-sum-exp, both [B, S, H] wide.

    An index below 0 or beyond the cache is no row, nor is what stands behind the first `topk_length` [B, S] entries.
    A query without a row gives 0, -inf and +inf. The masked dense form: every row is scored, rows that were not chosen
    count nothing, and one that was named twice counts once (the contract says that valid indices are distinct).
    """
    validate(q_BSHC, kv_BTC, indices_BSK, latent, scale, topk_length, attn_sink)
    wide = wide_dtype(q_BSHC)
    length_BS1 = None if topk_length is None else topk_length[:, :, None]
    chosen_BST = chosen_rows(first_entries(indices_BSK, length_BS1), kv_BTC.shape[1])
    out_BSHL, largest_BSH, lse_BSH = attend(q_BSHC.to(wide), kv_BTC.to(wide), chosen_BST, latent, scale)
    out_BSHL, lse_BSH = finish(out_BSHL, lse_BSH, attn_sink)
    return out_BSHL.to(q_BSHC.dtype), largest_BSH, lse_BSH


def quantised(
    q_BSHC: torch.Tensor,
    kv_BTC: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    *rest: Any,
    **named: Any,
) -> Results:
    """The same with cache rows that went through FP8: E4M3 in groups of 128, the rest in bfloat16."""
    validate(q_BSHC, kv_BTC, indices_BSK, latent, scale, *rest, **named)
    layout = layouts.read_layout(Arguments(NAME), "fp8_656", latent, kv_BTC.shape[-1])
    pieces = layouts.pack(kv_BTC.flatten(0, 1), layout, kv_BTC.dtype)
    stored_BTC = layouts.unpack(pieces, layout, kv_BTC.dtype).reshape(kv_BTC.shape)
    return reference(q_BSHC, stored_BTC, indices_BSK, latent, scale, *rest, **named)


def fake(
    q_BSHC: torch.Tensor,
    kv_BTC: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    *rest: Any,
    **named: Any,
) -> Results:
    """Shapes and dtypes of the results."""
    validate(q_BSHC, kv_BTC, indices_BSK, latent, scale, *rest, **named)
    per_head_BSH = q_BSHC.shape[:3]
    wide = wide_dtype(q_BSHC)
    largest_BSH, lse_BSH = (q_BSHC.new_empty(per_head_BSH, dtype=wide) for _ in range(2))
    return q_BSHC.new_empty((*per_head_BSH, latent)), largest_BSH, lse_BSH


def flops(
    q_BSHC: torch.Tensor,
    kv_BTC: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    *rest: Any,
    **named: Any,
) -> int:
    """The truly sparse cost: scores and sums over the chosen rows alone."""
    batch, queries, heads, width = q_BSHC.shape
    return int(2 * batch * queries * heads * indices_BSK.shape[-1] * (width + latent))


def moved_bytes(
    q_BSHC: torch.Tensor,
    kv_BTC: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    *rest: Any,
    **named: Any,
) -> int:
    """Queries, indices and results once; of the cache no more rows than were chosen."""
    batch, queries, heads, width = q_BSHC.shape
    read = batch * min(kv_BTC.shape[1], queries * indices_BSK.shape[-1]) * width * kv_BTC.element_size()
    results = batch * queries * heads * (latent * q_BSHC.element_size() + 2 * wide_dtype(q_BSHC).itemsize)
    options = sum(one.numel() * one.element_size() for one in (*rest, *named.values()) if one is not None)
    given = q_BSHC.numel() * q_BSHC.element_size() + indices_BSK.numel() * indices_BSK.element_size()
    return int(given + options + read + results)


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Distinct row numbers, as `fill_choice` makes them; a number of valid entries for each query."""
    fill_choice(args[2], args[1].shape[1], generator)
    length_BS = kwargs.get("topk_length", args[5] if len(args) > 5 else None)
    if length_BS is not None:
        length_BS.copy_(torch.randint(0, args[2].shape[-1] + 1, length_BS.shape, generator=generator))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small; odd sizes with sink, lengths and a row of NaN that nobody chose; nothing chosen, no rows; real heads."""
    for kind, (batch, queries, heads, rows, chosen, latent, rope), dtype in (
        ("small", (1, 2, 2, 6, 4, 8, 4), torch.float32),
        ("odd", (2, 3, 3, 7, 9, 5, 3), torch.bfloat16),
        ("corner", (1, 1, 1, 2, 2, 1, 0), torch.float32),
        ("corner", (2, 1, 3, 0, 2, 2, 1), torch.float32),
        ("traced", (1, 2, 64, 96, 64, 512, 64), torch.bfloat16),
    ):
        q_BSHC = torch.randn(batch, queries, heads, latent + rope, generator=generator).to(dtype)
        kv_BTC = torch.randn(batch, rows, latent + rope, generator=generator).to(dtype)
        indices_BSK = torch.full((batch, queries, chosen), -1, dtype=torch.int32)
        args: tuple[Any, ...] = (q_BSHC, kv_BTC, indices_BSK, latent, (latent + rope) ** -0.5)
        if kind != "corner":
            fill_choice(indices_BSK, rows, generator)
        if kind == "odd":
            kv_BTC[:, 4] = float("nan")
            indices_BSK[indices_BSK == 4] = rows
            length_BS = torch.tensor([[9, 3, 1], [0, 9, 5]], dtype=torch.int32)
            args = (*args, length_BS, torch.tensor([0.5, float("inf"), float("-inf")]))
        yield Sample(kind=kind, args=args, kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="sparse multi-head latent attention over chosen cache rows, many queries",
    schema="(Tensor q, Tensor kv, Tensor indices, int latent, float scale, Tensor? topk_length=None, "
    "Tensor? attn_sink=None) -> (Tensor, Tensor, Tensor)",
    mathematics="p = softmax over chosen j of scale q.kv_j; out = sum_j p_j kv_j[:L], times "
    "exp(lse) / (exp(lse) + exp(sink)) with a sink; max_j and ln sum_j exp of the scores; nothing chosen: 0, -inf, +inf",
    source="FlashMLA's interface for sparse attention; DeepSeek-V3.2 technical report",
    reference=reference,
    fake=fake,
    quantised=quantised,
    flops=flops,
    bytes=moved_bytes,
    fill=fill,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=8.0,
        reason="one softmax and two sums in float32; 8 ULP cover another order of the sums and another exponential",
    ),
    attributes=(
        Attribute(name="latent", meaning="how much of a row is value; the rest takes part in the score only"),
        Attribute(name="scale", meaning="of the score, usually (nope + rope)^-1/2, times mscale^2 under YaRN"),
        Attribute(name="topk_length", meaning="how many entries of a query's list count; all without it"),
        Attribute(name="attn_sink", meaning="a learned score without a value for each head; none without it"),
        Attribute(name="invalid rows", meaning="-1 or any number beyond the cache; valid ones are distinct"),
        Attribute(name="lse", meaning="natural logarithm, without the sink; +inf where nothing was chosen"),
    ),
    verified_against="torch scaled_dot_product_attention; transformers deepseek_v32 (expanded form) and gpt_oss (sink)",
)

"""Attention of a latent query over chosen rows of a latent cache (absorbed form).

Shape suffixes: B batch, S queries, H heads, T cache rows, K chosen rows, L latent, C = L + R row width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["OP", "fake", "reference", "validate"]

NAME = "day0::sparse_mla"


def validate(q_BSHC: torch.Tensor, kv_BTC: torch.Tensor, indices_BSK: torch.Tensor, latent: int, scale: float) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("q", q_BSHC, "BSHC")
    check.shape("kv", kv_BTC, "BTC")
    check.shape("indices", indices_BSK, "BSK")
    check.floating("q", q_BSHC)
    check.dtype("kv", kv_BTC, q_BSHC.dtype)
    check.dtype("indices", indices_BSK, torch.int32)
    width = q_BSHC.shape[-1]
    check.true("latent", 0 < latent <= width, f"1 to the row width {width}", latent)
    check.true("scale", scale > 0, "a positive number", scale)


def reference(
    q_BSHC: torch.Tensor, kv_BTC: torch.Tensor, indices_BSK: torch.Tensor, latent: int, scale: float
) -> torch.Tensor:
    """Return [B, S, H, L] in the dtype of q. An index below 0 or beyond the cache is no row; no row at all gives 0.

    The masked dense form: every row is scored, rows that were not chosen count nothing.
    """
    validate(q_BSHC, kv_BTC, indices_BSK, latent, scale)
    wide = torch.float64 if q_BSHC.dtype == torch.float64 else torch.float32
    rows = kv_BTC.shape[1]
    chosen_BST = chosen_rows(indices_BSK, rows)
    score_BSHT = torch.einsum("bshc,btc->bsht", q_BSHC.to(wide), kv_BTC.to(wide)) * scale
    score_BSHT = score_BSHT.masked_fill(~chosen_BST[:, :, None, :], float("-inf"))
    weight_BSHT = torch.softmax(score_BSHT, dim=-1)
    # A query with nothing chosen is 0 / 0.
    weight_BSHT = weight_BSHT.masked_fill(~chosen_BST[:, :, None, :], 0.0)
    value_BTL = kv_BTC[..., :latent].to(wide)
    finite_BTL = torch.isfinite(value_BTL)
    out_BSHL = torch.einsum("bsht,btl->bshl", weight_BSHT, torch.where(finite_BTL, value_BTL, 0.0))
    # 0 times NaN is NaN: what is not finite may reach only the queries that chose its row.
    spoiled_BSL = torch.matmul(chosen_BST.to(wide), (~finite_BTL).to(wide)) > 0
    return torch.where(spoiled_BSL[:, :, None], float("nan"), out_BSHL).to(q_BSHC.dtype)


def chosen_rows(indices_BSK: torch.Tensor, rows: int) -> torch.Tensor:
    """Return a mask [B, S, T], True where a row was chosen."""
    batch, queries, _ = indices_BSK.shape
    valid_BSK = (indices_BSK >= 0) & (indices_BSK < rows)
    # One more column takes what is not a row.
    target_BSK = torch.where(valid_BSK, indices_BSK, rows).to(torch.int64)
    mask_BST = torch.zeros(batch, queries, rows + 1, dtype=torch.bool, device=indices_BSK.device)
    return mask_BST.scatter(-1, target_BSK, True)[..., :rows]


def fake(
    q_BSHC: torch.Tensor, kv_BTC: torch.Tensor, indices_BSK: torch.Tensor, latent: int, scale: float
) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(q_BSHC, kv_BTC, indices_BSK, latent, scale)
    return q_BSHC.new_empty((*q_BSHC.shape[:3], latent))


def flops(q_BSHC: torch.Tensor, kv_BTC: torch.Tensor, indices_BSK: torch.Tensor, latent: int, scale: float) -> int:
    """The truly sparse cost: scores and sums over the chosen rows alone."""
    batch, queries, heads, width = q_BSHC.shape
    return int(2 * batch * queries * heads * indices_BSK.shape[-1] * (width + latent))


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Distinct row numbers, valid ones first, then -1 in a tail of another length for every query, or all of it."""
    kv_BTC, indices_BSK = args[1], args[2]
    batch, queries, chosen = indices_BSK.shape
    rows = kv_BTC.shape[1]
    order = torch.rand(batch, queries, max(rows, chosen), generator=generator).argsort(dim=-1)[..., :chosen]
    kept = torch.randint(0, chosen + 1, (batch, queries, 1), generator=generator)
    kept[-1, -1] = chosen if batch * queries == 1 else 0
    valid = (order < rows) & (torch.arange(chosen) < kept)
    # Rows that do not exist can stand between those that do: valid ones to the front, in their order.
    front = torch.sort((~valid).to(torch.int8), dim=-1, stable=True).indices
    indices_BSK.copy_(torch.where(valid, order, -1).gather(-1, front))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, odd sizes with invalid rows, and a query that chose nothing."""
    for kind, (batch, queries, heads, rows, chosen, latent, rope) in (
        ("small", (1, 2, 2, 6, 4, 8, 4)),
        ("odd", (2, 3, 3, 7, 9, 5, 3)),
        ("corner", (1, 1, 1, 2, 2, 1, 0)),
    ):
        q_BSHC = torch.randn(batch, queries, heads, latent + rope, generator=generator)
        kv_BTC = torch.randn(batch, rows, latent + rope, generator=generator)
        indices_BSK = torch.full((batch, queries, chosen), -1, dtype=torch.int32)
        args = (q_BSHC, kv_BTC, indices_BSK, latent, (latent + rope) ** -0.5)
        if kind != "corner":
            fill(args, {}, generator)
        yield Sample(kind=kind, args=args, kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="sparse multi-head latent attention over chosen cache rows",
    schema="(Tensor q, Tensor kv, Tensor indices, int latent, float scale) -> Tensor",
    mathematics="p = softmax over chosen j of scale q.kv_j; out = sum_j p_j kv_j[:L]; nothing chosen gives 0",
    source="FlashMLA's interface for sparse attention; DeepSeek-V3.2 technical report",
    reference=reference,
    fake=fake,
    flops=flops,
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
        Attribute(name="scale", meaning="of the score, usually (nope + rope)^-1/2"),
    ),
    verified_against="the definition in Python, row by row",
)

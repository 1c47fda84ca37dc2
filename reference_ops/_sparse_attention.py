"""Attention of latent queries over some rows: what the prefill and the decode form share.

Shape suffixes: B batch, S queries, H heads, T cache rows, K chosen rows, L latent, C = L + R row width.
"""

from __future__ import annotations

import torch

from day0.reference_ops._checks import Arguments

__all__ = ["attend", "check_sink", "chosen_rows", "fill_choice", "finish", "first_entries", "wide_dtype"]


def check_sink(check: Arguments, attn_sink: torch.Tensor | None, q_BSHC: torch.Tensor) -> None:
    """Refuse a sink that is not one number of the wide dtype for each head."""
    if attn_sink is not None:
        check.shape("attn_sink", attn_sink, "H")
        wide = (torch.float64,) if q_BSHC.dtype == torch.float64 else ()
        check.dtype("attn_sink", attn_sink, torch.float32, *wide)


def wide_dtype(q_BSHC: torch.Tensor) -> torch.dtype:
    """Return the dtype that everything is computed in."""
    return torch.float64 if q_BSHC.dtype == torch.float64 else torch.float32


def first_entries(indices_BSK: torch.Tensor, length: torch.Tensor | None) -> torch.Tensor:
    """Return the indices with -1 behind the first `length` ones; length broadcasts against [B, S, K]."""
    if length is None:
        return indices_BSK
    place_K = torch.arange(indices_BSK.shape[-1], device=indices_BSK.device)
    return torch.where(place_K < length, indices_BSK, -1)


def chosen_rows(indices_BSK: torch.Tensor, rows: int) -> torch.Tensor:
    """Return a mask [B, S, T], True where a row was chosen."""
    batch, queries, _ = indices_BSK.shape
    row_BSK = indices_BSK.to(torch.int64)
    # One more column takes what is not a row.
    target_BSK = torch.where((row_BSK >= 0) & (row_BSK < rows), row_BSK, rows)
    mask_BST = torch.zeros(batch, queries, rows + 1, dtype=torch.bool, device=indices_BSK.device)
    return mask_BST.scatter(-1, target_BSK, True)[..., :rows]


def attend(
    q_BSHC: torch.Tensor, kv_BTC: torch.Tensor, chosen_BST: torch.Tensor, latent: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the output, the largest score and the log-sum-exp over the chosen rows: 0, -inf, -inf without any."""
    score_BSHT = torch.einsum("bshc,btc->bsht", q_BSHC, kv_BTC) * scale
    score_BSHT = score_BSHT.masked_fill(~chosen_BST[:, :, None, :], float("-inf"))
    # One more column, so that there is a largest score also where there are no rows.
    largest_BSH = torch.nn.functional.pad(score_BSHT, (0, 1), value=float("-inf")).amax(dim=-1)
    base_BSH = torch.where(torch.isneginf(largest_BSH), 0.0, largest_BSH)
    weight_BSHT = (score_BSHT - base_BSH[..., None]).exp()
    total_BSH = weight_BSHT.sum(dim=-1)
    weight_BSHT = torch.where(total_BSH[..., None] == 0, 0.0, weight_BSHT / total_BSH[..., None])
    value_BTL = kv_BTC[..., :latent]
    finite_BTL = torch.isfinite(value_BTL)
    out_BSHL = torch.einsum("bsht,btl->bshl", weight_BSHT, torch.where(finite_BTL, value_BTL, 0.0))
    # 0 times NaN is NaN: what is not finite may reach only the queries that chose its row.
    spoiled_BSL = torch.matmul(chosen_BST.to(q_BSHC.dtype), (~finite_BTL).to(q_BSHC.dtype)) > 0
    out_BSHL = torch.where(spoiled_BSL[:, :, None], float("nan"), out_BSHL)
    return out_BSHL, largest_BSH, base_BSH + total_BSH.log()


def finish(
    out_BSHL: torch.Tensor, lse_BSH: torch.Tensor, attn_sink: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply the sink to the output, and let the log-sum-exp of nothing be +inf.

    The sink takes part in the softmax as a score without a value: exp(lse) / (exp(lse) + exp(sink)).
    """
    nothing_BSH = torch.isneginf(lse_BSH)
    if attn_sink is not None:
        kept_BSH = torch.sigmoid(lse_BSH - attn_sink.to(lse_BSH.dtype))
        out_BSHL = torch.where(nothing_BSH[..., None], out_BSHL, out_BSHL * kept_BSH[..., None])
    return out_BSHL, torch.where(nothing_BSH, float("inf"), lse_BSH)


def fill_choice(indices_BSK: torch.Tensor, rows: int, generator: torch.Generator) -> None:
    """Distinct row numbers among -1: another number of valid ones for every query, or none of them.

    Valid ones come first, but at the end of every second list: kernels take a list in tiles, and the first tile may hold
    nothing. A single query has as many as there are.
    """
    batch, queries, chosen = indices_BSK.shape
    if not indices_BSK.numel():
        return
    order = torch.rand(batch, queries, max(rows, chosen), generator=generator).argsort(dim=-1)[..., :chosen]
    kept = torch.randint(0, chosen + 1, (batch, queries, 1), generator=generator)
    late = torch.arange(batch * queries).reshape(batch, queries, 1) % 2 == 0
    if batch * queries == 1:
        kept[:], late[:] = chosen, False
    kept = torch.where(late, kept.clamp(1, max(1, chosen // 2)), kept)
    kept[-1, -1] = chosen if batch * queries == 1 else 0
    valid = (order < rows) & (torch.arange(chosen) < kept)
    # Rows that do not exist can stand between those that do: valid ones to the front, in their order.
    front = torch.sort((~valid).to(torch.int8), dim=-1, stable=True).indices
    listed = torch.where(valid, order, -1).gather(-1, front)
    indices_BSK.copy_(torch.where(late, listed.flip(-1), listed))

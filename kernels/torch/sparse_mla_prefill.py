"""day0::sparse_mla_prefill by gathering the chosen rows: the truly sparse form."""

from __future__ import annotations

import torch

from day0.implementation import Constraints, Implementation
from day0.reference_ops.sparse_mla_prefill import validate

__all__ = ["IMPLEMENTATIONS"]


def by_gather(
    q_BSHC: torch.Tensor,
    kv_BTC: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Read only the chosen rows, [B, S, K, C]: work and memory grow with K and not with the context.

    An index that stands twice would count twice; the contract's selection never does that.
    """
    validate(q_BSHC, kv_BTC, indices_BSK, latent, scale, topk_length, attn_sink)
    valid_BSK = (indices_BSK >= 0) & (indices_BSK < kv_BTC.shape[1])
    if topk_length is not None:
        place_K = torch.arange(indices_BSK.shape[-1], device=indices_BSK.device)
        valid_BSK = valid_BSK & (place_K < topk_length[:, :, None])
    picked_BSKC = picked_rows(kv_BTC, indices_BSK, valid_BSK)
    score_BSHK = torch.matmul(q_BSHC.float(), picked_BSKC.transpose(-1, -2)) * scale
    score_BSHK = score_BSHK.masked_fill(~valid_BSK[:, :, None, :], float("-inf"))
    # One more column, so that there is a largest score also where nothing can be chosen.
    largest_BSH1 = torch.nn.functional.pad(score_BSHK, (0, 1), value=float("-inf")).amax(dim=-1, keepdim=True)
    base_BSH1 = torch.where(torch.isneginf(largest_BSH1), 0.0, largest_BSH1)
    weight_BSHK = (score_BSHK - base_BSH1).exp()
    total_BSH1 = weight_BSHK.sum(dim=-1, keepdim=True)
    lse_BSH1 = base_BSH1 + total_BSH1.log()
    # What is not finite in a chosen row has spoiled the sum already, also where nothing weighs.
    sum_BSHL = torch.matmul(weight_BSHK, picked_BSKC[..., :latent])
    out_BSHL = sum_BSHL / torch.where(total_BSH1 == 0, 1.0, total_BSH1)
    if attn_sink is not None:
        kept_BSH1 = torch.sigmoid(lse_BSH1 - attn_sink[:, None])
        out_BSHL = torch.where(total_BSH1 == 0, out_BSHL, out_BSHL * kept_BSH1)
    lse_BSH = torch.where(total_BSH1 == 0, float("inf"), lse_BSH1)[..., 0]
    return out_BSHL.to(q_BSHC.dtype), largest_BSH1[..., 0].contiguous(), lse_BSH.contiguous()


def picked_rows(kv_BTC: torch.Tensor, indices_BSK: torch.Tensor, valid_BSK: torch.Tensor) -> torch.Tensor:
    """Return the chosen rows [B, S, K, C] in float32, 0 where there is none: 0 x NaN would leak into the sum."""
    batch, queries, chosen = indices_BSK.shape
    width = kv_BTC.shape[-1]
    if not kv_BTC.shape[1]:
        return kv_BTC.new_zeros((batch, queries, chosen, width), dtype=torch.float32)
    row_BSK = torch.where(valid_BSK, indices_BSK, 0).to(torch.int64)
    flat_BN1 = row_BSK.reshape(batch, queries * chosen, 1).expand(-1, -1, width)
    picked_BSKC = torch.gather(kv_BTC, 1, flat_BN1).reshape(batch, queries, chosen, width).float()
    return torch.where(valid_BSK[..., None], picked_BSKC, 0.0)


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::sparse_mla_prefill",
        contract=1,
        id="gathered_rows",
        version="1.0",
        kind="decomposition",
        run=by_gather,
        why="gathers the chosen cache rows: cost does not grow with the context",
        constraints=Constraints(dtypes=frozenset({"float16", "bfloat16", "float32", "int32"})),
    ),
)

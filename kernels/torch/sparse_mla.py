"""day0::sparse_mla by gathering the chosen rows: the truly sparse form."""

from __future__ import annotations

import torch

from day0.implementation import Constraints, Implementation
from day0.reference_ops.sparse_mla import validate

__all__ = ["IMPLEMENTATIONS"]


def by_gather(
    q_BSHC: torch.Tensor, kv_BTC: torch.Tensor, indices_BSK: torch.Tensor, latent: int, scale: float
) -> torch.Tensor:
    """Read only the chosen rows, [B, S, K, C]: work and memory grow with K and not with the context.

    An index that stands twice would count twice; the contract's selection never does that.
    """
    validate(q_BSHC, kv_BTC, indices_BSK, latent, scale)
    batch, queries, chosen = indices_BSK.shape
    valid_BSK = (indices_BSK >= 0) & (indices_BSK < kv_BTC.shape[1])
    row_BSK = torch.where(valid_BSK, indices_BSK, 0).to(torch.int64)
    flat_BN1 = row_BSK.reshape(batch, queries * chosen, 1).expand(-1, -1, kv_BTC.shape[-1])
    picked_BSKC = torch.gather(kv_BTC, 1, flat_BN1).reshape(batch, queries, chosen, -1).float()
    # Rows that only fill up are set to 0: NaN in a row nobody chose must not leak through 0 x NaN.
    picked_BSKC = torch.where(valid_BSK[..., None], picked_BSKC, 0.0)
    score_BSHK = torch.matmul(q_BSHC.float(), picked_BSKC.transpose(-1, -2)) * scale
    score_BSHK = score_BSHK.masked_fill(~valid_BSK[:, :, None, :], float("-inf"))
    largest_BSH1 = score_BSHK.amax(dim=-1, keepdim=True)
    largest_BSH1 = torch.where(torch.isneginf(largest_BSH1), 0.0, largest_BSH1)
    weight_BSHK = (score_BSHK - largest_BSH1).exp()
    total_BSH1 = weight_BSHK.sum(dim=-1, keepdim=True)
    out_BSHL = torch.matmul(weight_BSHK, picked_BSKC[..., :latent])
    return torch.where(total_BSH1 > 0, out_BSHL / total_BSH1, 0.0).to(q_BSHC.dtype)


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::sparse_mla",
        contract=1,
        id="gathered_rows",
        version="1.0",
        kind="decomposition",
        run=by_gather,
        why="gathers the chosen cache rows: cost does not grow with the context",
        constraints=Constraints(dtypes=frozenset({"float16", "bfloat16", "float32", "int32"})),
    ),
)

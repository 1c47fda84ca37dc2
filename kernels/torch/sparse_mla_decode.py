"""day0::sparse_mla_decode by gathering the chosen rows from their pages, without waiting for any value."""

from __future__ import annotations

import torch

from day0.implementation import Constraints, Implementation
from day0.kernels.torch.sparse_mla_prefill import by_gather
from day0.reference_ops.sparse_mla_decode import valid_entries, validate

__all__ = ["IMPLEMENTATIONS"]


def from_pages(
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
    """Read only the chosen rows: the pages of all requests are one long cache. Plain pages only."""
    _, page = validate(q_BSHC, pages_PGC, indices_BSK, latent, scale, layout, topk_length, attn_sink, bitmap)
    chosen_BSK = valid_entries(indices_BSK, pages_PGC.shape[0], page, topk_length, bitmap)
    rows_1TC = pages_PGC.reshape(1, -1, pages_PGC.shape[-1])
    rows_BTC = rows_1TC.expand(q_BSHC.shape[0], -1, -1)
    out_BSHL, _, lse_BSH = by_gather(q_BSHC, rows_BTC, chosen_BSK, latent, scale, None, attn_sink)
    return out_BSHL, lse_BSH.transpose(1, 2).contiguous()


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::sparse_mla_decode",
        contract=1,
        id="gathered_rows",
        version="1.0",
        kind="decomposition",
        run=from_pages,
        why="gathers the chosen rows from their pages: no host sync, cost does not grow with the context",
        # FP8 layouts come as uint8.
        constraints=Constraints(dtypes=frozenset({"float16", "bfloat16", "float32", "int32", "bool"})),
    ),
)

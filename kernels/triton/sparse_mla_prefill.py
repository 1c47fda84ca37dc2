"""day0::sparse_mla_prefill in Triton: each query gathers its own rows in tiles and shares them among its heads.

Shape suffixes: B batch, S queries, H heads, T cache rows, K chosen rows, L latent, C = L + R row width.
"""

from __future__ import annotations

import torch

from day0.devices.current import on_its_device
from day0.implementation import Constraints, Implementation, Limit, TensorLimit
from day0.kernels.triton._attend import LOG2_E, PLAIN, attend_functions
from day0.kernels.triton._tiles import sizes
from day0.kernels.triton._triton import HALVES, has_triton, next_power_of_2
from day0.reference_ops.sparse_mla_prefill import validate

__all__ = ["CHOICES", "IMPLEMENTATIONS", "TILES"]

TILES = {"rows": 64, "heads": 64, "warps": 8, "stages": 2}
"""Rows and heads of a tile: 64 rows of 576 values, beside 64 heads, fill the shared memory of an H200."""
CHOICES = {"rows": (32, 64), "heads": (32, 64, 128), "warps": (4, 8), "stages": (1, 2, 3)}


@on_its_device
def prefill(
    q_BSHC: torch.Tensor,
    kv_BTC: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return out [B, S, H, L] in the dtype of q; the largest score and the log-sum-exp [B, S, H] in float32."""
    validate(q_BSHC, kv_BTC, indices_BSK, latent, scale, topk_length, attn_sink)
    batch, queries, heads, width = q_BSHC.shape
    chosen, number = indices_BSK.shape[-1], kv_BTC.shape[1]
    out_BSHL = q_BSHC.new_empty((batch, queries, heads, latent))
    largest_BSH, lse_BSH = (q_BSHC.new_empty((batch, queries, heads), dtype=torch.float32) for _ in range(2))
    if not out_BSHL.numel():
        return out_BSHL, largest_BSH, lse_BSH
    if not chosen or not number:
        return out_BSHL.zero_(), largest_BSH.fill_(float("-inf")), lse_BSH.fill_(float("inf"))
    q_BSHC, indices_BSK = q_BSHC.contiguous(), indices_BSK.contiguous()
    kv_BTC = kv_BTC if kv_BTC.stride(-1) == 1 else kv_BTC.contiguous()
    tile = sizes("sparse_mla_prefill", TILES, q_BSHC.device)
    block = min(tile["heads"], next_power_of_2(heads, 16))
    # What is not given is never read; a pointer stands there all the same.
    length = indices_BSK if topk_length is None else topk_length.contiguous()
    sink = lse_BSH if attn_sink is None else attn_sink.contiguous()
    attend, _ = attend_functions()
    attend[(batch * queries, -(-heads // block), 1)](
        q_BSHC,
        kv_BTC,
        indices_BSK,
        length,
        indices_BSK,
        sink,
        out_BSHL,
        lse_BSH,
        largest_BSH,
        queries,
        heads,
        chosen,
        number,
        chosen,
        number,
        1,
        kv_BTC.stride(0),
        0,
        kv_BTC.stride(1),
        0,
        queries,
        1,
        queries * heads,
        heads,
        1,
        scale * LOG2_E,
        C=width,
        L=latent,
        LP=next_power_of_2(latent, 16),
        R=width - latent,
        RP=next_power_of_2(width - latent, 16),
        HEADS=block,
        TILE=tile["rows"],
        PARTS=1,
        LAYOUT=PLAIN,
        ALIGNED=False,
        GROUP=1,
        SCALES=0,
        SCALE_BYTES=0,
        LENGTH=topk_length is not None,
        BITMAP=False,
        SINK=attn_sink is not None,
        MOST=True,
        num_warps=tile["warps"],
        num_stages=tile["stages"],
    )
    return out_BSHL, largest_BSH, lse_BSH


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::sparse_mla_prefill",
        contract=1,
        id="triton",
        version="1.0",
        kind="kernel",
        run=prefill,
        why="reads only chosen rows; eager torch scores every row, or copies the chosen ones first",
        devices=("cuda",),
        constraints=Constraints(
            first_dtype=HALVES,
            arguments={
                "q": TensorLimit(sizes={-1: Limit(at_most=640)}),
                "latent": Limit(at_least=1, at_most=512),
                "attn_sink": TensorLimit(dtypes=frozenset({"float32"})),
            },
        ),
        predicate=has_triton,
        rank=50,
    ),
)

"""day0::lightning_indexer in Triton: keys are read once, products of all heads stay in registers.

Shape suffixes: B batch, S queries, T keys, H index heads, D index dimension.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from day0.devices.current import on_its_device
from day0.implementation import Constraints, Implementation, Limit, TensorLimit
from day0.kernels.triton._tiles import sizes
from day0.kernels.triton._triton import HALVES, has_triton, next_power_of_2, triton_and_language
from day0.reference_ops.lightning_indexer import validate

__all__ = ["CHOICES", "IMPLEMENTATIONS", "TILES"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call."""

TILES = {"keys": 128, "warps": 8}
"""Keys of one program. At 128 Ki keys of 32 requests an H200 reads 3.6 TB/s so."""
CHOICES = {"keys": (64, 128, 256), "warps": (4, 8)}


@cache
def _kernel() -> Any:
    global tl
    triton, tl = triton_and_language()

    @triton.jit
    def score(
        q,
        k,
        w,
        out,
        queries,
        keys,
        first,
        factor,
        H: tl.constexpr,
        HP: tl.constexpr,
        D: tl.constexpr,
        DP: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        batch = tl.program_id(1).to(tl.int64)
        t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        h, d = tl.arange(0, HP), tl.arange(0, DP)
        inside = (t < keys)[:, None] & (d < D)[None, :]
        key = tl.load(k + (batch * keys + t)[:, None] * D + d[None, :], mask=inside, other=0.0)
        for s in range(queries):
            at = (batch * queries + s) * H
            query = tl.load(q + (at + h)[:, None] * D + d[None, :], mask=(h < H)[:, None] & (d < D)[None, :], other=0.0)
            weight = tl.load(w + at + h, mask=h < H, other=0.0).to(tl.float32)
            dot = tl.dot(key, tl.trans(query))
            # Not maximum: it would turn a NaN into 0.
            dot = tl.where(dot < 0.0, 0.0, dot)
            logit = tl.sum(tl.where((h < H)[None, :], dot * weight[None, :], 0.0), 1) * factor
            logit = tl.where(t <= first + s, logit, float("-inf"))
            tl.store(out + (batch * queries + s) * keys + t, logit, mask=t < keys)

    return score


@on_its_device
def indexer(q_BSHD: torch.Tensor, k_BTD: torch.Tensor, w_BSH: torch.Tensor, first_position: int) -> torch.Tensor:
    """Return logits [B, S, T] float32."""
    validate(q_BSHD, k_BTD, w_BSH, first_position)
    q_BSHD, k_BTD, w_BSH = q_BSHD.contiguous(), k_BTD.contiguous(), w_BSH.contiguous()
    batch, queries, heads, dim = q_BSHD.shape
    keys = k_BTD.shape[1]
    out_BST = torch.empty(batch, queries, keys, dtype=torch.float32, device=q_BSHD.device)
    if out_BST.numel():
        tile = sizes("lightning_indexer", TILES, q_BSHD.device)
        _kernel()[(-(-keys // tile["keys"]), batch)](
            q_BSHD,
            k_BTD,
            w_BSH,
            out_BST,
            queries,
            keys,
            first_position,
            heads**-0.5 * dim**-0.5,
            H=heads,
            HP=next_power_of_2(heads, 16),
            D=dim,
            DP=next_power_of_2(dim, 16),
            BLOCK=tile["keys"],
            num_warps=tile["warps"],
        )
    return out_BST


BASE = Implementation(
    operator="day0::lightning_indexer",
    contract=1,
    id="triton",
    version="1.1",
    kind="kernel",
    run=indexer,
    why="every key is read once, and the products of all heads never leave the registers",
    devices=("cuda",),
    constraints=Constraints(
        first_dtype=HALVES,
        arguments={
            "q": TensorLimit(sizes={-2: Limit(at_most=128), -1: Limit(at_most=256)}),
            "w": TensorLimit(dtypes=HALVES | {"float32"}),
        },
    ),
    predicate=has_triton,
    rank=50,
)

# Kimi K3.1 has a decomposition of its own for devices that lack much, which would be found before the base's kernel.
IMPLEMENTATIONS = (BASE, replace(BASE, namespace="kimi/k3.1"))

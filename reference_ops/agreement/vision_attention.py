"""Packed attention against both towers and torch's own kernel with a mask."""

from __future__ import annotations

import importlib
from itertools import pairwise
from types import SimpleNamespace

import torch

from day0.reference_ops import vision_attention
from day0.reference_ops.agreement._comparison import Comparison, load_file, worst
from day0.reference_ops.agreement.rope_2d import VISION
from day0.reference_ops.rope_2d import grid_positions

__all__ = ["COMPARISONS"]

GRIDS = ((4, 6), (1, 1), (7, 3))
HEADS, WIDTH = 3, 8


def _inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q, k, v [3, N, H, D] float64, cumulative lengths and positions of three images."""
    patches = sum(rows * columns for rows, columns in GRIDS)
    qkv = torch.randn(3, patches, HEADS, WIDTH, generator=torch.Generator().manual_seed(29), dtype=torch.float64)
    lengths = torch.tensor([0, *(rows * columns for rows, columns in GRIDS)])
    return qkv, lengths.cumsum(0), torch.cat([grid_positions(*grid) for grid in GRIDS])


def _mine(qkv: torch.Tensor, lengths: torch.Tensor, positions_N2: torch.Tensor, *rest: int) -> torch.Tensor:
    image_N = vision_attention.images_from_lengths(lengths)
    return vision_attention.reference(qkv[0], qkv[1], qkv[2], image_N, positions_N2, WIDTH**-0.5, *rest)


def against_automodel() -> float:
    """In float64 but for its softmax, which is float32."""
    vision = load_file("nemo-automodel", VISION)
    qkv, lengths, positions_N2 = _inputs()
    theirs = vision.eager_attention(*qkv.unbind(0), lengths, lengths)
    return worst((_mine(qkv, lengths, positions_N2).flatten(1), theirs))


def against_transformers() -> float:
    """Its attention module with projections that change nothing and no rotation; the softmax is float32."""
    modeling = importlib.import_module("transformers.models.kimi_k25.modeling_kimi_k25")
    qkv, lengths, positions_N2 = _inputs()
    config = SimpleNamespace(
        hidden_size=HEADS * WIDTH, num_attention_heads=HEADS, _attn_implementation="eager", attention_dropout=0.0
    )
    module = modeling.Kimi_K25VisionAttention(config).double().eval()
    # One input holds what becomes q, k and v alike: self-attention of x by itself.
    x_NHD = qkv[0]
    for part in (module.q_proj, module.k_proj, module.v_proj, module.proj):
        part.weight = torch.nn.Parameter(torch.eye(HEADS * WIDTH, dtype=torch.float64))
        part.bias = torch.nn.Parameter(torch.zeros(HEADS * WIDTH, dtype=torch.float64))
    still = torch.ones(x_NHD.shape[0], WIDTH), torch.zeros(x_NHD.shape[0], WIDTH)
    with torch.no_grad():
        theirs = module(x_NHD.flatten(1), cu_seqlens=lengths, position_embeddings=still)
    # It rotates, and thereby rounds, queries and keys in float32 before they meet.
    alike = torch.stack((x_NHD.float().double(), x_NHD.float().double(), x_NHD))
    return worst((_mine(alike, lengths, positions_N2).flatten(1), theirs))


def against_torch() -> float:
    """Window 1 and two global patches; the mask is written out pair by pair."""
    qkv, lengths, positions_N2 = _inputs()
    places, starts = positions_N2.tolist(), lengths.tolist()
    mask_NM = torch.zeros(len(places), len(places), dtype=torch.bool)
    for begin, end in pairwise(starts):
        for n in range(begin, end):
            for m in range(begin, end):
                near = max(abs(places[n][0] - places[m][0]), abs(places[n][1] - places[m][1])) <= 1
                mask_NM[n, m] = near or n - begin < 2 or m - begin < 2
    q, k, v = qkv.transpose(1, 2)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask_NM, scale=WIDTH**-0.5)
    return worst((_mine(qkv, lengths, positions_N2, 1, 2), theirs.transpose(0, 1)))


COMPARISONS = (
    Comparison(
        operator=vision_attention.NAME,
        variant="whole image",
        against="nemo_automodel kimi_k3 eager_attention",
        distribution="nemo-automodel",
        limit=1e-6,
        run=against_automodel,
    ),
    Comparison(
        operator=vision_attention.NAME,
        variant="whole image",
        against="transformers kimi_k25 Kimi_K25VisionAttention",
        distribution="transformers",
        limit=1e-6,
        run=against_transformers,
    ),
    Comparison(
        operator=vision_attention.NAME,
        variant="window 1, two global patches",
        against="torch.nn.functional.scaled_dot_product_attention with a mask",
        distribution="torch",
        limit=3e-15,
        run=against_torch,
    ),
)

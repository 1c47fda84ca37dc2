"""Two-dimensional rotary embedding against both towers, one with neighbours and one with halves as pairs."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import torch

from day0.reference_ops import rope_2d
from day0.reference_ops.agreement._comparison import Comparison, load_file, worst

__all__ = ["COMPARISONS", "VISION"]

VISION = "nemo_automodel/components/models/kimi_k3/vision.py"
ROWS, COLUMNS, HEADS, WIDTH = 40, 70, 2, 72


def _inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(23)
    x_NHD = torch.randn(2 * ROWS * COLUMNS, HEADS, WIDTH, generator=generator)
    return x_NHD, rope_2d.grid_positions(ROWS, COLUMNS).repeat(2, 1)


def against_automodel() -> float:
    """Two frames; complex numbers in float32."""
    vision = load_file("nemo-automodel", VISION)
    x_NHD, positions_N2 = _inputs()
    tower = vision.Rope2DPosEmbRepeated(WIDTH, 64, 128)
    turns = tower.get_freqs_cis(torch.tensor([[2, ROWS, COLUMNS]]), x_NHD.device)
    theirs = vision.apply_rope(x_NHD, x_NHD, turns)
    mine = rope_2d.reference(x_NHD, positions_N2, 1e4)
    return worst((mine, theirs[0]), (mine, theirs[1]))


def against_transformers() -> float:
    """The halves of a head are its pairs there: elements 2p and 2p + 1 stand at p and p + D/2."""
    modeling = importlib.import_module("transformers.models.kimi_k25.modeling_kimi_k25")
    utils = importlib.import_module("transformers.vision_utils")
    x_NHD, positions_N2 = _inputs()
    parameters = {"rope_type": "axial", "rope_theta": 1e4}
    tower = modeling.Kimi_K25VisionRotaryEmbedding(SimpleNamespace(rope_parameters=parameters, head_dim=WIDTH))
    places = utils.get_vision_position_ids(torch.tensor([[2, ROWS, COLUMNS]]), spatial_merge_size=1)
    cos, sin = tower(x_NHD, places)
    halves_NHD = torch.cat((x_NHD[..., 0::2], x_NHD[..., 1::2]), dim=-1)
    turned, _ = modeling.apply_rotary_pos_emb_vision(halves_NHD, halves_NHD, cos, sin)
    theirs = torch.stack(turned.chunk(2, dim=-1), dim=-1).flatten(-2)
    return worst((rope_2d.reference(x_NHD, positions_N2, 1e4), theirs))


COMPARISONS = (
    Comparison(
        operator=rope_2d.NAME,
        variant="neighbours are pairs, two frames",
        against="nemo_automodel kimi_k3 Rope2DPosEmbRepeated, apply_rope",
        distribution="nemo-automodel",
        limit=1e-6,
        run=against_automodel,
    ),
    Comparison(
        operator=rope_2d.NAME,
        variant="halves are pairs, two frames",
        against="transformers kimi_k25 Kimi_K25VisionRotaryEmbedding, apply_rotary_pos_emb_vision",
        distribution="transformers",
        limit=1e-6,
        run=against_transformers,
    ),
)

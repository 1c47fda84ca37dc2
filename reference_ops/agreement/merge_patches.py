"""The patch merger against both towers."""

from __future__ import annotations

import importlib

import torch

from day0.reference_ops import merge_patches
from day0.reference_ops.agreement._comparison import Comparison, load_file, worst
from day0.reference_ops.agreement.rope_2d import VISION

__all__ = ["COMPARISONS"]

GRIDS = ((1, 4, 6), (3, 2, 8), (4, 6, 2))
WIDTH = 5


def _packed(dtype: torch.dtype) -> list[torch.Tensor]:
    """Return one x [frames * rows * columns, D] for each of the videos that the other sides take in one."""
    generator = torch.Generator().manual_seed(37)
    return [torch.randn(t * h * w, WIDTH, generator=generator, dtype=torch.float64).to(dtype) for t, h, w in GRIDS]


def against_automodel() -> float:
    """In float64."""
    vision = load_file("nemo-automodel", VISION)
    parts = _packed(torch.float64)
    theirs = vision.tpool_patch_merger(torch.cat(parts), torch.tensor(GRIDS), (2, 2))
    mine = [merge_patches.reference(x, h, w, 2) for x, (_, h, w) in zip(parts, GRIDS, strict=True)]
    return worst(*((one, other.flatten(1)) for one, other in zip(mine, theirs, strict=True)))


def against_transformers() -> float:
    """Adds each frame, divided, in float32."""
    modeling = importlib.import_module("transformers.models.kimi_k25.modeling_kimi_k25")
    parts = _packed(torch.float32)
    # The method reads nothing of its module.
    theirs = modeling.Kimi_K25VisionModel.temporal_merge(None, torch.cat(parts), torch.tensor(GRIDS), 2, 2)
    mine = [merge_patches.reference(x, h, w, 2) for x, (_, h, w) in zip(parts, GRIDS, strict=True)]
    return worst((torch.cat(mine), theirs.flatten(1)))


COMPARISONS = (
    Comparison(
        operator=merge_patches.NAME,
        variant="1, 3 and 4 frames",
        against="nemo_automodel kimi_k3 tpool_patch_merger",
        distribution="nemo-automodel",
        limit=0.0,
        run=against_automodel,
    ),
    Comparison(
        operator=merge_patches.NAME,
        variant="1, 3 and 4 frames, float32",
        against="transformers kimi_k25 Kimi_K25VisionModel.temporal_merge",
        distribution="transformers",
        limit=5e-7,
        run=against_transformers,
    ),
)

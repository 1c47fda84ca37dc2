"""Resized position tables against both towers and the definition in Python, cell by cell."""

from __future__ import annotations

import math
from functools import partial

import torch

from day0.reference_ops import resize_positions
from day0.reference_ops.agreement._comparison import Comparison, load_file, worst
from day0.reference_ops.agreement.rope_2d import VISION

__all__ = ["COMPARISONS"]

GRIDS = ((7, 5), (5, 5), (3, 11), (1, 1))


def _table(dtype: torch.dtype) -> torch.Tensor:
    """Return a square table [5, 5, 4]: the other sides know no others."""
    return torch.randn(5, 5, 4, generator=torch.Generator().manual_seed(31), dtype=torch.float64).to(dtype)


def against_automodel(mode: str) -> float:
    """In float64; its compiled function runs as it is written."""
    vision = load_file("nemo-automodel", VISION)
    table_RCD = _table(torch.float64)
    module = vision.Learnable2DInterpPosEmbDivided_fixed(5, 5, 4, 4, mode)
    module.weight = torch.nn.Parameter(table_RCD, requires_grad=False)
    pairs = []
    for rows, columns in GRIDS:
        with torch.compiler.set_stance("force_eager"):
            theirs = module(torch.zeros(rows * columns, 4), torch.tensor([[1, rows, columns]]))
        pairs.append((resize_positions.reference(table_RCD, rows, columns, mode).flatten(0, 1), theirs))
    return worst(*pairs)


def against_transformers(mode: str) -> float:
    """A weighted gather in float32, all grids at once."""
    from transformers.vision_utils import get_vision_interpolation_indices_and_weights

    table_RCD = _table(torch.float32)
    grids = torch.tensor([[1, *grid] for grid in GRIDS])
    indices, weights = get_vision_interpolation_indices_and_weights(grids, 5, mode=mode, align_corners=False)
    theirs = torch.nn.functional.embedding_bag(
        indices, table_RCD.flatten(0, 1), per_sample_weights=weights.to(torch.float32), mode="sum"
    )
    mine = [resize_positions.reference(table_RCD, rows, columns, mode).flatten(0, 1) for rows, columns in GRIDS]
    return worst((torch.cat(mine), theirs))


def against_the_definition(mode: str) -> float:
    """Weights of each neighbour in Python, in float64; a table that is not square."""
    table_RCD = _table(torch.float64)[:, :3].contiguous()
    pairs = []
    for rows, columns in GRIDS:
        out = torch.zeros(rows, columns, 4, dtype=torch.float64)
        for y in range(rows):
            for x in range(columns):
                for r, high in _neighbours(y, rows, 5, mode):
                    for c, wide in _neighbours(x, columns, 3, mode):
                        out[y, x] += high * wide * table_RCD[r, c]
        pairs.append((resize_positions.reference(table_RCD, rows, columns, mode), out))
    return worst(*pairs)


def _neighbours(cell: int, cells: int, size: int, mode: str) -> list[tuple[int, float]]:
    place = (cell + 0.5) * size / cells - 0.5
    reach = 1 if mode == "bilinear" else 2
    first = math.floor(place) - reach + 1
    weigh = _linear if mode == "bilinear" else _cubic
    return [(min(max(i, 0), size - 1), weigh(abs(place - i))) for i in range(first, first + 2 * reach)]


def _linear(distance: float) -> float:
    return max(0.0, 1.0 - distance)


def _cubic(distance: float, a: float = -0.75) -> float:
    if distance <= 1:
        return (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    return a * (distance**3 - 5 * distance**2 + 8 * distance - 4) if distance < 2 else 0.0


COMPARISONS = tuple(
    Comparison(operator=resize_positions.NAME, variant=mode, against=against, distribution=name, limit=limit, run=run)
    for mode in resize_positions.MODES
    for against, name, limit, run in (
        (
            "nemo_automodel kimi_k3 Learnable2DInterpPosEmbDivided_fixed",
            "nemo-automodel",
            0.0,
            partial(against_automodel, mode),
        ),
        (
            "transformers get_vision_interpolation_indices_and_weights, as kimi_k25 uses it",
            "transformers",
            3e-6,
            partial(against_transformers, mode),
        ),
        ("the definition in Python, cell by cell", "day0", 1e-14, partial(against_the_definition, mode)),
    )
)

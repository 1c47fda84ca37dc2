"""Resize a learned table of absolute positions to the grid of an image.

Shape suffixes: R, C rows and columns of the table, Y, X rows and columns of the image, D features.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["MODES", "OP", "fake", "reference", "validate"]

NAME = "day0::resize_positions"
MODES = ("bilinear", "bicubic")


def validate(table_RCD: torch.Tensor, rows: int, columns: int, mode: str) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("table", table_RCD, "RCD")
    check.floating("table", table_RCD)
    check.true("table", 0 not in table_RCD.shape, "a table that is not empty", list(table_RCD.shape))
    check.true("rows", rows >= 1, "at least 1", rows)
    check.true("columns", columns >= 1, "at least 1", columns)
    check.true("mode", mode in MODES, " or ".join(MODES), mode)


def reference(table_RCD: torch.Tensor, rows: int, columns: int, mode: str) -> torch.Tensor:
    """Return [rows, columns, D] in the dtype of the table; the same size gives a copy.

    Centres of cells are aligned, not corners; beyond the border the border counts; a smaller grid is not smoothed.
    The cubic kernel has a = -0.75. Sums are taken in float32 (float64 for float64).
    """
    validate(table_RCD, rows, columns, mode)
    if table_RCD.shape[:2] == (rows, columns):
        return table_RCD.clone(memory_format=torch.contiguous_format)
    wide = torch.float64 if table_RCD.dtype == torch.float64 else torch.float32
    table_1DRC = table_RCD.to(wide).permute(2, 0, 1)[None]
    resized_1DYX = torch.nn.functional.interpolate(table_1DRC, (rows, columns), mode=mode, align_corners=False)
    return resized_1DYX[0].permute(1, 2, 0).to(table_RCD.dtype).contiguous()


def fake(table_RCD: torch.Tensor, rows: int, columns: int, mode: str) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(table_RCD, rows, columns, mode)
    return table_RCD.new_empty((rows, columns, table_RCD.shape[-1]))


def flops(table_RCD: torch.Tensor, rows: int, columns: int, mode: str) -> int:
    """A product and a sum for each of 4 or 16 neighbours."""
    if table_RCD.shape[:2] == (rows, columns):
        return 0
    return 2 * (4 if mode == "bilinear" else 16) * rows * columns * int(table_RCD.shape[-1])


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, larger one way and smaller the other, the same size and one cell, and K3's table of 64 x 64."""
    yield Sample(kind="small", args=(torch.randn(4, 4, 3, generator=generator), 6, 8, "bilinear"), kwargs={})
    for mode in MODES:
        table_RCD = torch.randn(5, 7, 3, generator=generator)
        yield Sample(kind="odd", args=(table_RCD, 11, 3, mode), kwargs={})
        yield Sample(kind="corner", args=(table_RCD, 5, 7, mode), kwargs={})
        yield Sample(kind="corner", args=(table_RCD[:1, :1].clone(), 2, 3, mode), kwargs={})
        yield Sample(kind="corner", args=(table_RCD, 1, 1, mode), kwargs={})
        yield Sample(kind="traced", args=(torch.randn(64, 64, 1152, generator=generator), 3, 5, mode), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="learned position table of a vision tower resized to an image",
    schema="(Tensor table, int rows, int columns, str mode) -> Tensor",
    mathematics="cell (y, x) reads the table at ((y + 1/2) R / rows - 1/2, (x + 1/2) C / columns - 1/2), linear or cubic "
    "(a = -3/4) in each direction, indices clamped to the border",
    source="Kimi K3's vision tower as NeMo AutoModel holds it (bilinear); transformers' kimi_k25 (bicubic)",
    reference=reference,
    fake=fake,
    flops=flops,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=8.0,
        reason="16 products with weights that are polynomials of a coordinate near 64, itself rounded; cubic weights "
        "have both signs and cancel",
    ),
    attributes=(Attribute(name="mode", meaning="bilinear (Kimi K3) or bicubic (Kimi K2.5)"),),
    verified_against="the definition in Python; NeMo AutoModel's kimi_k3; transformers' kimi_k25",
)

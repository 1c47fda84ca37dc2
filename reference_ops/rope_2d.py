"""Turn query or key heads of image patches by their place in the grid.

Shape suffixes: N patches, H heads, D head dimension, P = D/2 pairs, Q = D/4 frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["OP", "fake", "grid_positions", "reference", "validate"]

NAME = "day0::rope_2d"


def validate(x_NHD: torch.Tensor, positions_N2: torch.Tensor, theta: float) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("x", x_NHD, "NHD")
    check.floating("x", x_NHD)
    check.shape("positions", positions_N2, "N2")
    check.true("positions", positions_N2.shape[1] == 2, "two columns: row and column", list(positions_N2.shape))
    check.dtype("positions", positions_N2, torch.int32, torch.int64)
    width = x_NHD.shape[-1]
    check.true("x", width >= 4 and width % 4 == 0, "a head dimension that is a multiple of 4", width)
    check.true("theta", math.isfinite(theta) and theta > 0, "a positive number", theta)


def reference(x_NHD: torch.Tensor, positions_N2: torch.Tensor, theta: float) -> torch.Tensor:
    """Return [N, H, D] in the dtype of x.

    Neighbours 2p and 2p + 1 are a pair. Even pairs turn by the column, odd ones by the row; pairs 2i and 2i + 1
    share the frequency theta^(-4i/D). Angles are computed in float32 (float64 for float64).
    """
    validate(x_NHD, positions_N2, theta)
    wide = torch.float64 if x_NHD.dtype == torch.float64 else torch.float32
    width = x_NHD.shape[-1]
    exponent_Q = torch.arange(0, width, 4, device=x_NHD.device, dtype=wide) / width
    frequency_Q = 1.0 / torch.pow(torch.tensor(theta, dtype=wide, device=x_NHD.device), exponent_Q)
    # Column before row: the last dimension, flattened, alternates as the pairs do.
    column_row_N2 = positions_N2.flip(-1).to(wide)
    angle_NP = (frequency_Q[None, :, None] * column_row_N2[:, None, :]).flatten(1)
    cos_NP, sin_NP = angle_NP.cos()[:, None, :], angle_NP.sin()[:, None, :]
    even_NHP, odd_NHP = x_NHD[..., 0::2].to(wide), x_NHD[..., 1::2].to(wide)
    turned = torch.stack((even_NHP * cos_NP - odd_NHP * sin_NP, even_NHP * sin_NP + odd_NHP * cos_NP), dim=-1)
    return turned.flatten(-2).to(x_NHD.dtype).contiguous()


def grid_positions(rows: int, columns: int) -> torch.Tensor:
    """Return positions [rows * columns, 2] int64 of one image, row by row, as patches are packed."""
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.stack((row.flatten(), column.flatten()), dim=-1)


def fake(x_NHD: torch.Tensor, positions_N2: torch.Tensor, theta: float) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(x_NHD, positions_N2, theta)
    return x_NHD.new_empty(x_NHD.shape)


def flops(x_NHD: torch.Tensor, positions_N2: torch.Tensor, theta: float) -> int:
    """Four products and two sums for each pair; the angles are few beside them."""
    return 3 * x_NHD.numel()


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """One image twice as wide as high, so that a swap of row and column shows; the last row may be short."""
    positions_N2 = args[1]
    patches = positions_N2.shape[0]
    columns = max(1, math.isqrt(2 * patches))
    rows = -(-patches // columns)
    positions_N2.copy_(grid_positions(rows, columns)[:patches])


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, far places, no patch and one frequency, and the heads of K3's tower on the edge of its largest grid."""
    x_NHD = torch.randn(6, 2, 8, generator=generator)
    yield Sample(kind="small", args=(x_NHD, grid_positions(2, 3), 1e4), kwargs={})
    far_N2 = torch.tensor([[0, 511], [511, 0], [17, 3], [3, 17], [-1, 2]], dtype=torch.int32)
    yield Sample(kind="odd", args=(torch.randn(5, 3, 12, generator=generator), far_N2, 100.0), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(0, 1, 4), grid_positions(0, 3), 1e4), kwargs={})
    yield Sample(kind="corner", args=(torch.randn(1, 1, 4, generator=generator), grid_positions(1, 1), 1e4), kwargs={})
    edge_N2 = grid_positions(512, 512)[-16:]
    yield Sample(kind="traced", args=(torch.randn(16, 16, 72, generator=generator), edge_N2, 1e4), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="two-dimensional rotary position embedding of MoonViT's queries and keys",
    schema="(Tensor x, Tensor positions, float theta) -> Tensor",
    mathematics="pair (x[2p], x[2p+1]) turns by theta^(-4i/D) times the column for p = 2i, times the row for p = 2i + 1",
    source="Kimi K3's vision tower as NeMo AutoModel holds it; RoFormer, arXiv 2104.09864",
    reference=reference,
    fake=fake,
    flops=flops,
    fill=fill,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=4.0,
        reason="angles reach 511 radians, where float32 keeps 3e-5 of the turn: a matter of the dtype itself, which the "
        "ratio covers; 4 ULP are two products and a sum",
    ),
    attributes=(Attribute(name="theta", meaning="base of the frequencies; 1e4 in MoonViT"),),
    verified_against="NeMo AutoModel's kimi_k3 and transformers' kimi_k25 (halves for neighbours)",
)

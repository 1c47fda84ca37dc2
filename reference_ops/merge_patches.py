"""Merge neighbouring patches of an image into one token.

Shape suffixes: N patches, F frames, Y, X merged rows and columns, A, B place within a merged patch, D features.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["OP", "fake", "reference", "validate"]

NAME = "day0::merge_patches"


def validate(x_ND: torch.Tensor, rows: int, columns: int, merge: int) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("x", x_ND, "ND")
    check.floating("x", x_ND)
    check.true("merge", merge >= 1, "at least 1", merge)
    for name, size in (("rows", rows), ("columns", columns)):
        check.true(name, size >= merge and size % merge == 0, f"a multiple of merge = {merge}, at least once", size)
    patches = x_ND.shape[0]
    whole = patches >= rows * columns and patches % (rows * columns) == 0
    check.true("x", whole, f"whole frames of {rows} x {columns} patches, at least one", f"{patches} patches")


def reference(x_ND: torch.Tensor, rows: int, columns: int, merge: int) -> torch.Tensor:
    """Return [(rows / merge) * (columns / merge), merge * merge * D] in the dtype of x.

    Patches are packed by frame, row and column. The mean over the frames comes first, in float32 (float64 for
    float64); then the merge x merge neighbours stand side by side, row by row.
    """
    validate(x_ND, rows, columns, merge)
    wide = torch.float64 if x_ND.dtype == torch.float64 else torch.float32
    frames, high, broad = x_ND.shape[0] // (rows * columns), rows // merge, columns // merge
    x_FYAXBD = x_ND.to(wide).reshape(frames, high, merge, broad, merge, x_ND.shape[-1])
    mean_YXABD = x_FYAXBD.mean(dim=0).permute(0, 2, 1, 3, 4)
    return mean_YXABD.reshape(high * broad, merge * merge * x_ND.shape[-1]).to(x_ND.dtype).contiguous()


def fake(x_ND: torch.Tensor, rows: int, columns: int, merge: int) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(x_ND, rows, columns, merge)
    return x_ND.new_empty(((rows // merge) * (columns // merge), merge * merge * x_ND.shape[-1]))


def flops(x_ND: torch.Tensor, rows: int, columns: int, merge: int) -> int:
    """The sums over the frames; one frame only moves."""
    return 0 if x_ND.shape[0] == rows * columns else x_ND.numel()


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, frames with threefold merging, nothing to merge and one patch, and K3's width."""
    yield Sample(kind="small", args=(torch.randn(8, 3, generator=generator), 2, 4, 2), kwargs={})
    yield Sample(kind="odd", args=(torch.randn(3 * 54, 5, generator=generator), 6, 9, 3), kwargs={})
    yield Sample(kind="corner", args=(torch.randn(6, 3, generator=generator), 2, 3, 1), kwargs={})
    yield Sample(kind="corner", args=(torch.randn(1, 1, generator=generator), 1, 1, 1), kwargs={})
    x_ND = torch.randn(2 * 24, 1152, generator=generator).to(torch.bfloat16)
    yield Sample(kind="traced", args=(x_ND, 4, 6, 2), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="mean over frames and grouping of neighbouring patches, before the projector",
    schema="(Tensor x, int rows, int columns, int merge) -> Tensor",
    mathematics="out[y, x] = (m[y merge + a, x merge + b] for a, b in order), m = mean of x over the frames",
    source="the patch merger of Kimi K3's vision tower as NeMo AutoModel holds it",
    reference=reference,
    fake=fake,
    flops=flops,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=1.0,
        reason="one frame only moves; the mean of several is a sum and one product, rounded once",
    ),
    attributes=(Attribute(name="merge", meaning="neighbours in each direction that become one token; 2 in MoonViT"),),
    verified_against="NeMo AutoModel's kimi_k3; transformers' kimi_k25",
)

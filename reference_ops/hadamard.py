"""Spread every value over a whole row, so that a quantised row has no outlier: the Walsh-Hadamard transform.

Shape suffixes: D the transformed dimension; any number of dimensions before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["NAME", "OP", "fake", "reference", "validate"]

NAME = "day0::hadamard"


def validate(x: torch.Tensor) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.floating("x", x)
    check.true("x", x.dim() >= 1, "at least one dimension", x.dim())
    size = x.shape[-1]
    check.true("x", size >= 1 and size & (size - 1) == 0, "a last dimension that is a power of two", size)


def reference(x: torch.Tensor) -> torch.Tensor:
    """Return x H_D / sqrt(D), of the shape and dtype of x, rounded once. It is its own inverse.

    H_D[i, j] is -1 to the number of ones in i & j (Sylvester's order).
    """
    validate(x)
    size = x.shape[-1]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    y = x.to(wide)
    step = 1
    while step < size:
        # Indices that differ in one bit become sum and difference.
        pairs = y.unflatten(-1, (size // (2 * step), 2, step))
        low, high = pairs.unbind(dim=-2)
        y = torch.stack((low + high, low - high), dim=-2).flatten(-3)
        step *= 2
    out: torch.Tensor = (y * size**-0.5).to(x.dtype)
    return out


def fake(x: torch.Tensor) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(x)
    return x.new_empty(x.shape)


def flops(x: torch.Tensor) -> int:
    """One addition for each value and each bit of its index, and the scale."""
    return int(x.numel() * x.shape[-1].bit_length())


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, an outlier, one value, no rows, and the queries and keys of DeepSeek V3.2's indexer."""
    yield Sample(kind="small", args=(torch.randn(3, 8, generator=generator),), kwargs={})
    outlier = torch.randn(2, 3, 5, 32, generator=generator)
    outlier[..., 7] *= 1e3
    yield Sample(kind="odd", args=(outlier,), kwargs={})
    yield Sample(kind="corner", args=(torch.randn(1, generator=generator),), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(2, 0, 4),), kwargs={})
    yield Sample(kind="traced", args=(torch.randn(1, 3, 64, 128, generator=generator),), kwargs={})
    yield Sample(kind="traced", args=(torch.randn(1, 70, 128, generator=generator),), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="orthonormal Walsh-Hadamard transform of rows",
    schema="(Tensor x) -> Tensor",
    mathematics="y[j] = D^-1/2 sum_i (-1)^popcount(i & j) x[i]",
    source="DeepSeek-V3.2 inference code (rotate_activation); Sylvester's construction",
    reference=reference,
    fake=fake,
    flops=flops,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=4.0,
        reason="log2 D additions in float32 and one scale; 4 ULP cover a matrix product, whose order is another, and "
        "a scale that is applied first",
    ),
    attributes=(
        Attribute(
            name="both sides or neither",
            meaning="queries and keys of an indexer must both be transformed, which leaves their products as they "
            "are, or neither: one side alone chooses tokens at random",
        ),
        Attribute(name="order", meaning="Sylvester's; sorted by sign changes is another contract"),
        Attribute(name="rounding", meaning="once, to the dtype of x; some models force bfloat16 here"),
    ),
    verified_against="numpy.kron of [[1, 1], [1, -1]]; compressed-tensors; nemo-automodel",
)

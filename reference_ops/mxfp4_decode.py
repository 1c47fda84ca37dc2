"""Decode MXFP4 weights: four-bit floats in blocks of 32 with one power-of-two scale.

Shape suffixes: R rows (any number of leading dimensions), P = I / 2 packed bytes, G = I / 32 blocks, I values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["BLOCK", "E2M1_VALUES", "OP", "fake", "reference", "validate"]

NAME = "day0::mxfp4_decode"
BLOCK = 32
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the codes 0 to 7; 8 to 15 are the same with the sign bit set, code 8 is -0."""


def validate(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.dtype("codes", codes, torch.uint8)
    check.dtype("scales", scales, torch.uint8)
    check.true("codes", codes.dim() >= 1, "at least one dimension", codes.dim())
    packed = codes.shape[-1]
    check.true("codes", packed % (BLOCK // 2) == 0, f"a multiple of {BLOCK // 2} bytes in a row", packed)
    expected = (*codes.shape[:-1], packed // (BLOCK // 2))
    check.true("scales", tuple(scales.shape) == expected, f"shape {list(expected)}", list(scales.shape))
    check.true("dtype", dtype.is_floating_point, "a floating dtype", dtype)


def reference(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return values [..., I] in `dtype`: E2M1 code times 2^(scale - 127); scale byte 255 gives NaN.

    The low nibble of a byte is the even element. Computed by arithmetic on the fields in float64, which holds every
    product exactly, then rounded once.
    """
    validate(codes, scales, dtype)
    nibble = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    sign = 1.0 - 2.0 * (nibble >> 3).to(torch.float64)
    exponent, mantissa = ((nibble >> 1) & 3).to(torch.float64), (nibble & 1).to(torch.float64)
    # Exponent 0 is subnormal: 0 or 0.5; else (1 + m/2) 2^(e-1).
    magnitude = torch.where(exponent == 0, 0.5 * mantissa, (1.0 + 0.5 * mantissa) * torch.exp2(exponent - 1.0))
    power = torch.exp2(scales.to(torch.float64) - 127.0)
    power = torch.where(scales == 255, float("nan"), power)
    return (sign * magnitude * power.repeat_interleave(BLOCK, dim=-1)).to(dtype)


def fake(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(codes, scales, dtype)
    return codes.new_empty((*codes.shape[:-1], 2 * codes.shape[-1]), dtype=dtype)


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Every byte is a valid pair of codes; the first scales are the extreme ones, 255 (NaN) among them."""
    codes, scales = args[0], args[1]
    codes.copy_(torch.randint(0, 256, codes.shape, generator=generator))
    values = torch.randint(118, 137, scales.shape, generator=generator)
    extremes = torch.tensor([0, 1, 254, 255])[: max(0, values.numel() - 1)]
    values.view(-1)[: extremes.numel()] = extremes
    scales.copy_(values)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """One block, odd rows, and every code under the extreme scale bytes."""
    for kind, rows, blocks in (("small", (2,), 1), ("odd", (3, 5), 3)):
        codes = torch.zeros(*rows, blocks * BLOCK // 2, dtype=torch.uint8)
        scales = torch.zeros(*rows, blocks, dtype=torch.uint8)
        fill((codes, scales), {}, generator)
        yield Sample(kind=kind, args=(codes, scales, torch.float32), kwargs={})
    all_codes = torch.arange(256, dtype=torch.uint8).reshape(1, 256).repeat(1, 1)
    extremes = torch.tensor([[0, 1, 127, 254, 255, 120, 130, 127, 0, 1, 127, 254, 255, 120, 130, 127]])
    yield Sample(kind="corner", args=(all_codes, extremes.to(torch.uint8), torch.float32), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="MXFP4 weights to a floating dtype",
    schema="(Tensor codes, Tensor scales, ScalarType dtype) -> Tensor",
    mathematics="value = E2M1(code) * 2^(scale - 127), blocks of 32 along the last dimension, low nibble first",
    source="OCP Microscaling Formats (MX) specification 1.0",
    reference=reference,
    fake=fake,
    fill=fill,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(
        ratio=1.0, ceiling=0.0, ulps=0.0, reason="a table look-up and a power of two: one right answer, rounded once"
    ),
    attributes=(
        Attribute(name="nibble order", meaning="low nibble is the even element; GGUF's order is another contract"),
    ),
    verified_against="ml_dtypes float4_e2m1fn and float8_e8m0fnu, every byte under every scale",
)

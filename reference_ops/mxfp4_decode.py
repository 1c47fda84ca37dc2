"""Decode MXFP4 weights: four-bit floats in blocks of 32 with one power-of-two scale.

Shape suffixes: R rows (any number of leading dimensions), P = I / 2 packed bytes, G = I / 32 blocks, I values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["BLOCK", "E2M1_VALUES", "OP", "ORDERS", "fake", "nibbles", "reference", "validate"]

NAME = "day0::mxfp4_decode"
BLOCK = 32
ORDERS = ("low_first", "split")
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the codes 0 to 7; 8 to 15 are the same with the sign bit set, code 8 is -0."""


def validate(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, order: str) -> None:
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
    check.true("order", order in ORDERS, " or ".join(ORDERS), repr(order))


def reference(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, order: str = "low_first") -> torch.Tensor:
    """Return values [..., I] in `dtype`: E2M1 code times 2^(scale - 127); scale byte 255 gives NaN, also for code 0.

    low_first: the low nibble of byte j is element 2j, the high one 2j + 1. split: within a block of 32, the low
    nibble of byte j is element j and the high one j + 16. Computed by arithmetic on the fields in float64, which
    holds every product exactly, then rounded once: scale bytes 253 and 254 overflow where code and dtype do.
    """
    validate(codes, scales, dtype, order)
    nibble = nibbles(codes, order)
    sign = 1.0 - 2.0 * (nibble >> 3).to(torch.float64)
    exponent, mantissa = ((nibble >> 1) & 3).to(torch.float64), (nibble & 1).to(torch.float64)
    # Exponent 0 is subnormal: 0 or 0.5; else (1 + m/2) 2^(e-1).
    magnitude = torch.where(exponent == 0, 0.5 * mantissa, (1.0 + 0.5 * mantissa) * torch.exp2(exponent - 1.0))
    power = torch.exp2(scales.to(torch.float64) - 127.0)
    power = torch.where(scales == 255, float("nan"), power)
    return (sign * magnitude * power.repeat_interleave(BLOCK, dim=-1)).to(dtype)


def nibbles(codes: torch.Tensor, order: str) -> torch.Tensor:
    """Return the codes one by one, [..., I] uint8, in the order of the elements."""
    low, high = codes & 15, codes >> 4
    if order == "low_first":
        return torch.stack((low, high), dim=-1).flatten(-2)
    block = (-1, BLOCK // 2)
    return torch.stack((low.unflatten(-1, block), high.unflatten(-1, block)), dim=-2).flatten(-3)


def fake(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, order: str = "low_first") -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(codes, scales, dtype, order)
    return codes.new_empty((*codes.shape[:-1], 2 * codes.shape[-1]), dtype=dtype)


def flops(codes: torch.Tensor, *rest: Any, **named: Any) -> int:
    """One product for each value."""
    return int(2 * codes.numel())


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Every byte is a valid pair of codes; the first scales are the extreme ones, 255 (NaN) among them."""
    codes, scales = args[0], args[1]
    codes.copy_(torch.randint(0, 256, codes.shape, generator=generator))
    values = torch.randint(118, 137, scales.shape, generator=generator)
    extremes = torch.tensor([0, 1, 254, 255])[: max(0, values.numel() - 1)]
    values.view(-1)[: extremes.numel()] = extremes
    scales.copy_(values)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """One block, odd rows, both orders; every code under the extreme scale bytes, no rows; a row of K3's experts."""
    for kind, rows, blocks, order in (
        ("small", (2,), 1, "low_first"),
        ("odd", (3, 5), 3, "low_first"),
        ("odd", (2, 1, 3), 2, "split"),
        ("traced", (6,), 3584 // BLOCK, "low_first"),
    ):
        codes = torch.zeros(*rows, blocks * BLOCK // 2, dtype=torch.uint8)
        scales = torch.zeros(*rows, blocks, dtype=torch.uint8)
        fill((codes, scales), {}, generator)
        yield Sample(kind=kind, args=(codes, scales, torch.float32, order), kwargs={})
    all_codes = torch.arange(256, dtype=torch.uint8).reshape(1, 256)
    extremes = torch.tensor([[0, 1, 127, 254, 255, 120, 130, 127, 0, 1, 127, 253, 255, 120, 130, 127]])
    for order in ORDERS:
        yield Sample(kind="corner", args=(all_codes, extremes.to(torch.uint8), torch.float32, order), kwargs={})
    yield Sample(kind="corner", args=(all_codes[:0], extremes[:0].to(torch.uint8), torch.float32), kwargs={})


OP = Operator(
    name=NAME,
    version=2,
    summary="MXFP4 weights to a floating dtype",
    schema='(Tensor codes, Tensor scales, ScalarType dtype, str order="low_first") -> Tensor',
    mathematics="value = E2M1(code) * 2^(scale - 127), NaN for scale 255, blocks of 32 along the last dimension",
    source="OCP Microscaling Formats (MX) specification 1.0; GGUF type 39 for the split order",
    reference=reference,
    fake=fake,
    flops=flops,
    fill=fill,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(
        ratio=1.0, ceiling=0.0, ulps=0.0, reason="a table look-up and a power of two: one right answer, rounded once"
    ),
    attributes=(
        Attribute(name="order", meaning="low_first: low nibble is the even element; split: GGUF's, low half first"),
    ),
    verified_against="ml_dtypes float4_e2m1fn and float8_e8m0fnu, every byte under every scale, both orders; "
    "compressed-tensors and transformers for scale bytes 0 to 254 (255 is no NaN to them)",
)

"""Quantise a matrix to FP8 (e4m3) with one float32 scale for every block.

Shape suffixes: M rows, K columns, R = ceil(M / block_rows), C = ceil(K / block_columns) blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["LARGEST", "OP", "expand", "fake", "reference", "validate"]

NAME = "day0::fp8_block_quantise"
LARGEST = 448.0
"""Of e4m3fn: 1.75 * 2^8."""
SMALLEST_EXPONENT = -127
"""Of a power-of-two scale: what E8M0 can hold."""


def validate(x_MK: torch.Tensor, block_rows: int, block_columns: int, power_of_two: bool, floor: float) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("x", x_MK, "MK")
    check.dtype("x", x_MK, torch.float32, torch.float64, torch.bfloat16, torch.float16)
    check.true("block_rows", block_rows >= 1, "at least 1", block_rows)
    check.true("block_columns", block_columns >= 1, "at least 1", block_columns)
    check.true("floor", 0.0 <= floor < float("inf"), "0 or a positive number", floor)


def reference(
    x_MK: torch.Tensor, block_rows: int, block_columns: int, power_of_two: bool, floor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values [M, K] in float8_e4m3fn and scales [R, C] in float32; x is about value times scale.

    scale = max(largest magnitude, floor) / 448, or the least power of two that is not below it; a scale that would be
    0 is 1. value = x / scale, a true division rounded to float32, clamped to +-448 before the cast (nearest even).
    A NaN or an infinity makes the scale and every value of its own block NaN, and touches no other block.
    """
    validate(x_MK, block_rows, block_columns, power_of_two, floor)
    wide = torch.float64 if x_MK.dtype == torch.float64 else torch.float32
    largest_RC = largest(x_MK.to(wide), block_rows, block_columns)
    finite_RC = torch.isfinite(largest_RC)
    largest_RC = torch.where(finite_RC, largest_RC, 1.0).clamp(min=floor)
    scale_RC = power_above(largest_RC) if power_of_two else (largest_RC / LARGEST).to(torch.float32)
    scale_RC = torch.where(scale_RC == 0, 1.0, scale_RC)
    scale_RC = torch.where(finite_RC, scale_RC, float("nan"))
    scale_MK = expand(scale_RC, x_MK.shape[0], x_MK.shape[1], block_rows, block_columns)
    # The clamp stands here because casts differ in what they make of more than 448: NaN, or 448.
    value_MK = (x_MK.to(wide) / scale_MK.to(wide)).to(torch.float32).clamp(-LARGEST, LARGEST)
    return value_MK.to(torch.float8_e4m3fn).contiguous(), scale_RC


def largest(x_MK: torch.Tensor, block_rows: int, block_columns: int) -> torch.Tensor:
    """Return the largest magnitude of each block [R, C]; ragged blocks are completed with zeros."""
    rows, columns = -x_MK.shape[0] % block_rows, -x_MK.shape[1] % block_columns
    full = torch.nn.functional.pad(x_MK.abs(), (0, columns, 0, rows))
    blocks = full.unflatten(0, (full.shape[0] // block_rows, block_rows))
    blocks = blocks.unflatten(2, (full.shape[1] // block_columns, block_columns))
    return torch.amax(blocks, dim=(1, 3))


def power_above(largest_RC: torch.Tensor) -> torch.Tensor:
    """Return the least power of two that is at least largest / 448, float32, by the exponent and not by a logarithm."""
    # largest = m 2^e with m in [0.5, 1), and 448 = 0.875 * 2^9.
    mantissa_RC, exponent_RC = torch.frexp(largest_RC)
    exponent_RC = exponent_RC - 9 + (mantissa_RC > 0.875).to(exponent_RC.dtype)
    power_RC = torch.ldexp(torch.ones_like(largest_RC), exponent_RC.clamp(min=SMALLEST_EXPONENT))
    return torch.where(largest_RC == 0, 0.0, power_RC).to(torch.float32)


def expand(scale_RC: torch.Tensor, rows: int, columns: int, block_rows: int, block_columns: int) -> torch.Tensor:
    """Repeat each scale over its block and cut the ragged edge: [M, K]."""
    over_rows = scale_RC.repeat_interleave(block_rows, dim=0)[:rows]
    return over_rows.repeat_interleave(block_columns, dim=1)[:, :columns]


def fake(
    x_MK: torch.Tensor, block_rows: int, block_columns: int, power_of_two: bool, floor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    validate(x_MK, block_rows, block_columns, power_of_two, floor)
    rows, columns = -(-x_MK.shape[0] // block_rows), -(-x_MK.shape[1] // block_columns)
    values_MK = x_MK.new_empty(x_MK.shape, dtype=torch.float8_e4m3fn)
    return values_MK, x_MK.new_empty((rows, columns), dtype=torch.float32)


def flops(x_MK: torch.Tensor, block_rows: int, block_columns: int, power_of_two: bool, floor: float) -> int:
    """A magnitude, a comparison, a division and two clamps for each value."""
    return int(5 * x_MK.numel())


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged edges, wide spreads, zeros, NaN, infinities, subnormal blocks, no rows; 128 x 128 and 1 x 128."""
    yield Sample(kind="small", args=(torch.randn(4, 8, generator=generator), 2, 4, False, 0.0), kwargs={})
    spread = torch.randn(7, 13, generator=generator) * 10.0 ** torch.randint(-6, 7, (7, 13), generator=generator)
    yield Sample(kind="odd", args=(spread, 3, 5, True, 1e-4), kwargs={})
    # Halves of the last place of e4m3 under scale 1, and a largest magnitude of 448 times a power of two.
    ties = torch.tensor([[448.0, 17.0, 19.0, -0.0, 2.0**-10, 3 * 2.0**-10, -(2.0**-9), 449.0]])
    yield Sample(kind="odd", args=(ties.repeat(2, 1), 1, 7, True, 0.0), kwargs={})
    nan, inf = float("nan"), float("inf")
    extreme = torch.tensor([[0.0, -0.0, nan, 1.0, inf, 2.0], [1e-45, -1e-40, 3e38, 1.0, -inf, nan]])
    yield Sample(kind="corner", args=(extreme, 1, 2, False, 0.0), kwargs={})
    yield Sample(kind="corner", args=(extreme, 1, 2, True, 0.0), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(0, 6), 1, 4, True, 1e-10), kwargs={})
    yield Sample(kind="traced", args=(torch.randn(160, 576, generator=generator), 128, 128, False, 0.0), kwargs={})
    yield Sample(kind="traced", args=(torch.randn(3, 7168, generator=generator), 1, 128, True, 1e-4), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="matrix to FP8 e4m3 with a scale for each block",
    schema="(Tensor x, int block_rows, int block_columns, bool power_of_two, float floor) -> (Tensor, Tensor)",
    mathematics="s = max(amax of the block, floor) / 448, or 2^ceil(log2 of that); value = e4m3(clip(x / s, 448))",
    source="DeepSeek-V3 technical report, 3.3; DeepGEMM for power-of-two scales; OCP FP8 specification for e4m3",
    reference=reference,
    fake=fake,
    flops=flops,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(
        ratio=1.0,
        ceiling=0.0,
        ulps=0.0,
        reason="divisions that IEEE 754 defines and one cast: one right answer; multiplying by a reciprocal is another",
    ),
    attributes=(
        Attribute(name="block_rows, block_columns", meaning="128 x 128 for weights, 1 x 128 for tokens"),
        Attribute(name="power_of_two", meaning="scales that E8M0 can hold (UE8M0), rounded up, so that nothing clips"),
        Attribute(name="floor", meaning="least largest-magnitude: 1e-4 in DeepGEMM; 0 leaves a block of zeros scale 1"),
    ),
    verified_against="ml_dtypes float8_e4m3fn for every bfloat16; transformers Fp8Quantize; Python's fractions",
)

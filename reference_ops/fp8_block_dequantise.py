"""FP8 (e4m3) values with one scale for every block back to a floating dtype.

Shape suffixes: M rows, K columns, R = ceil(M / block_rows), C = ceil(K / block_columns) blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance
from day0.reference_ops.fp8_block_quantise import expand

__all__ = ["OP", "fake", "reference", "validate"]

NAME = "day0::fp8_block_dequantise"


def validate(
    values_MK: torch.Tensor, scales_RC: torch.Tensor, block_rows: int, block_columns: int, dtype: torch.dtype
) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("values", values_MK, "MK")
    check.shape("scales", scales_RC, "RC")
    # float64 is how a golden is made of either.
    check.dtype("values", values_MK, torch.float8_e4m3fn, torch.float64)
    check.dtype("scales", scales_RC, torch.float32, torch.float64)
    check.true("block_rows", block_rows >= 1, "at least 1", block_rows)
    check.true("block_columns", block_columns >= 1, "at least 1", block_columns)
    expected = (-(-values_MK.shape[0] // block_rows), -(-values_MK.shape[1] // block_columns))
    check.true("scales", tuple(scales_RC.shape) == expected, f"shape {list(expected)}", list(scales_RC.shape))
    allowed = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    check.true("dtype", dtype in allowed, " or ".join(str(one) for one in allowed), dtype)


def reference(
    values_MK: torch.Tensor, scales_RC: torch.Tensor, block_rows: int, block_columns: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return [M, K] in `dtype`: value times scale, rounded to float32 (not for float64) and then to `dtype`.

    Multiplied also where a checkpoint calls the scale inverse. The edge blocks may be ragged. NaN stays NaN.
    """
    validate(values_MK, scales_RC, block_rows, block_columns, dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    scale_MK = expand(scales_RC, values_MK.shape[0], values_MK.shape[1], block_rows, block_columns)
    return (values_MK.to(wide) * scale_MK.to(wide)).to(dtype).contiguous()


def fake(
    values_MK: torch.Tensor, scales_RC: torch.Tensor, block_rows: int, block_columns: int, dtype: torch.dtype
) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(values_MK, scales_RC, block_rows, block_columns, dtype)
    return values_MK.new_empty(values_MK.shape, dtype=dtype)


def flops(values_MK: torch.Tensor, *rest: Any, **named: Any) -> int:
    """One product for each value."""
    return int(values_MK.numel())


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Every code but the two NaNs, and scales of the size that weights have."""
    values_MK, scales_RC = args[0], args[1]
    byte_MK = torch.randint(0, 127, values_MK.shape, generator=generator)
    byte_MK = byte_MK + 128 * torch.randint(0, 2, values_MK.shape, generator=generator)
    values_MK.copy_(byte_MK.to(torch.uint8).view(torch.float8_e4m3fn))
    scales_RC.copy_(torch.rand(scales_RC.shape, generator=generator) * 1e-3 + 1e-5)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged edges; every code under extreme scales; no rows; a projection of DeepSeek-V3 that 128 does not divide."""
    for kind, (rows, columns), (block_rows, block_columns), dtype in (
        ("small", (4, 8), (2, 4), torch.float32),
        ("odd", (7, 13), (3, 5), torch.bfloat16),
        ("corner", (0, 6), (1, 4), torch.float16),
        ("traced", (576, 256), (128, 128), torch.bfloat16),
    ):
        values_MK = torch.zeros(rows, columns, dtype=torch.float8_e4m3fn)
        scales_RC = torch.zeros(-(-rows // block_rows), -(-columns // block_columns))
        args = (values_MK, scales_RC, block_rows, block_columns, dtype)
        fill(args, {}, generator)
        yield Sample(kind=kind, args=args, kwargs={})
    codes = torch.arange(256, dtype=torch.uint8).repeat(6, 1).view(torch.float8_e4m3fn)
    extremes = torch.tensor([[0.0], [1e-45], [2.0**-126], [3e38], [float("inf")], [float("nan")]])
    yield Sample(kind="corner", args=(codes, extremes, 1, 256, torch.float32), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="FP8 e4m3 values with block scales to a floating dtype",
    schema="(Tensor values, Tensor scales, int block_rows, int block_columns, ScalarType dtype) -> Tensor",
    mathematics="x = value * scale of its block",
    source="DeepSeek-V3 inference code (weight_scale_inv is multiplied)",
    reference=reference,
    fake=fake,
    flops=flops,
    fill=fill,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(
        ratio=1.0, ceiling=0.0, ulps=0.0, reason="one product in float32 and one rounding: one right answer"
    ),
    attributes=(
        Attribute(name="block_rows, block_columns", meaning="128 x 128 for weights, 1 x 128 for tokens"),
        Attribute(name="dtype", meaning="of the result"),
    ),
    verified_against="transformers Fp8Dequantize; ml_dtypes float8_e4m3fn, every code",
)

"""FP8 block quantisation against NumPy with ml_dtypes, and against two quantisers of weights."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from day0.reference_ops import fp8_block_quantise
from day0.reference_ops.agreement._comparison import Comparison, error, worst
from day0.reference_ops.agreement._modules import module

__all__ = ["COMPARISONS"]


def every_bfloat16() -> torch.Tensor:
    """Return all 65536 bit patterns, [65536]."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def against_ml_dtypes_cast() -> float:
    """Every bfloat16 up to 448 in one block whose scale is 1; -0 counts as another value than 0."""
    import ml_dtypes

    x_1K = every_bfloat16()
    x_1K = x_1K[x_1K.abs() <= 448][None]
    values, scales = fp8_block_quantise.reference(x_1K, 1, x_1K.shape[1], False, 448.0)
    expected = x_1K.float().numpy().astype(ml_dtypes.float8_e4m3fn).view("uint8")
    return worst((values.view(torch.uint8), torch.from_numpy(expected)), (scales, torch.ones(1, 1)))


def against_numpy() -> float:
    """Two thousand bfloat16 one by one, float32 of all sizes in, ragged blocks, block by block; powers of two by fractions."""
    import ml_dtypes
    import numpy

    finite = every_bfloat16().float()
    finite = finite[torch.isfinite(finite)]
    generator = torch.Generator().manual_seed(2)
    finite = finite[torch.randperm(len(finite), generator=generator)][:2050].reshape(2, 1025)
    sizes = torch.exp2(torch.randint(-90, 90, (37, 1), generator=generator))
    spread = sizes * torch.randn(37, 203, generator=generator)
    errors = []
    for x_MK, rows, columns, floor, power in (
        (finite, 1, 1, 0.0, False),
        (finite, 1, 1, 0.0, True),
        (spread, 16, 128, 0.0, False),
        (spread, 7, 10, 1e-4, True),
    ):
        values, scales = fp8_block_quantise.reference(x_MK, rows, columns, power, floor)
        x, mine = x_MK.numpy(), scales.numpy()
        expected = numpy.empty_like(x)
        for r, c in numpy.ndindex(*mine.shape):
            place = numpy.s_[r * rows : (r + 1) * rows, c * columns : (c + 1) * columns]
            largest = max(float(numpy.abs(x[place]).max()), floor)
            errors.append(0.0 if mine[r, c] == scale_of(largest, power) else float("inf"))
            expected[place] = x[place] / mine[r, c]
        clipped = numpy.clip(expected, -448, 448).astype(ml_dtypes.float8_e4m3fn).view("uint8")
        errors.append(error(values.view(torch.uint8), torch.from_numpy(clipped)))
    return max(errors)


def scale_of(largest: float, power_of_two: bool) -> float:
    """Return the scale by its definition: whole fractions and a search."""
    from fractions import Fraction

    import numpy

    quotient = Fraction(largest) / 448
    if not power_of_two:
        return float(numpy.float32(numpy.float32(largest) / numpy.float32(448))) or 1.0
    if quotient == 0:
        return 1.0
    exponent = -127
    while Fraction(2) ** exponent < quotient:
        exponent += 1
    return 2.0**exponent


def against_transformers(scale_fmt: str) -> float:
    """Blocks of 128 x 128. Theirs multiplies by 448 / amax, so each amax is made to divide without rounding."""
    quantise = module("transformers.integrations.finegrained_fp8").Fp8Quantize
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(256, 384, generator=generator).clamp(-3.4, 3.4)
    if scale_fmt != "ue8m0":
        weight[::128, ::128] = 3.5
    config = SimpleNamespace(weight_block_size=(128, 128), scale_fmt=scale_fmt)
    quantiser = SimpleNamespace(quantization_config=config)
    theirs = quantise(quantiser).convert({"w.weight": weight})
    values, scales = fp8_block_quantise.reference(weight, 128, 128, scale_fmt == "ue8m0", 0.0)
    return worst(
        (values.view(torch.uint8), theirs["w.weight"].view(torch.uint8)),
        (scales, theirs["w.weight_scale_inv"].float()),
    )


def against_transformers_plain() -> float:
    """Float scales."""
    return against_transformers("float")


def against_transformers_power() -> float:
    """Power-of-two scales."""
    return against_transformers("ue8m0")


def against_compressed_tensors() -> float:
    """Values under given scales, 128 x 128."""
    quantization = module("compressed_tensors.quantization")
    weight = torch.randn(256, 384, generator=torch.Generator().manual_seed(4))
    values, scales = fp8_block_quantise.reference(weight, 128, 128, False, 0.0)
    args = quantization.QuantizationArgs(num_bits=8, type="float", strategy="block", block_structure=[128, 128])
    theirs = quantization.lifecycle.forward.quantize(
        weight, scales, torch.zeros_like(scales), args, dtype=torch.float8_e4m3fn
    )
    return error(values.view(torch.uint8), theirs.view(torch.uint8))


COMPARISONS = tuple(
    Comparison(
        operator=fp8_block_quantise.NAME, variant=variant, against=against, distribution=name, limit=0.0, run=run
    )
    for variant, against, name, run in (
        ("every bfloat16, scale 1", "float8_e4m3fn cast", "ml_dtypes", against_ml_dtypes_cast),
        ("block by block", "NumPy division, float8_e4m3fn cast, fractions", "ml_dtypes", against_numpy),
        ("float scales", "finegrained_fp8 Fp8Quantize", "transformers", against_transformers_plain),
        ("power of two", "finegrained_fp8 Fp8Quantize", "transformers", against_transformers_power),
        ("float scales", "lifecycle.forward.quantize", "compressed-tensors", against_compressed_tensors),
    )
)

"""FP8 block dequantisation against transformers and NumPy with ml_dtypes."""

from __future__ import annotations

import torch

from day0.reference_ops import fp8_block_dequantise
from day0.reference_ops.agreement._comparison import Comparison, error
from day0.reference_ops.agreement._modules import module

__all__ = ["COMPARISONS"]


def inputs(rows: int, columns: int, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return every code but NaN, over and over, and scales."""
    codes = torch.arange(rows * columns) * 7 % 256
    codes = torch.where(codes % 128 == 127, 0, codes).to(torch.uint8).reshape(rows, columns)
    scales = torch.rand(-(-rows // block), -(-columns // block), generator=torch.Generator().manual_seed(3)) + 1e-3
    return codes.view(torch.float8_e4m3fn), scales


def against_transformers() -> float:
    """Blocks of 128 x 128 that divide the matrix, to two dtypes."""
    fp8 = module("transformers.integrations.finegrained_fp8")
    values, scales = inputs(256, 384, 128)
    return max(
        error(
            fp8_block_dequantise.reference(values, scales, 128, 128, dtype),
            fp8.Fp8Dequantize(None)._dequantize_one(values, scales, dtype),
        )
        for dtype in (torch.float32, torch.bfloat16)
    )


def against_transformers_ragged() -> float:
    """The form for gradients, which takes ragged edges; in float32, where it does not round the scale."""
    fp8 = module("transformers.integrations.finegrained_fp8")
    values, scales = inputs(200, 300, 128)
    theirs = fp8._dequantize_fp8_weight(values, scales, [128, 128], torch.float32)
    return error(fp8_block_dequantise.reference(values, scales, 128, 128, torch.float32), theirs)


def against_ml_dtypes() -> float:
    """Every code, NaN too, in float64, block by block."""
    import ml_dtypes
    import numpy

    codes = torch.arange(256, dtype=torch.uint8).repeat(5, 3)
    _, scales = inputs(5, 768, 2)
    mine = fp8_block_dequantise.reference(codes.view(torch.float8_e4m3fn), scales, 2, 2, torch.float64)
    expected = codes.numpy().view(ml_dtypes.float8_e4m3fn).astype("float64")
    for r, c in numpy.ndindex(*scales.shape):
        expected[2 * r : 2 * r + 2, 2 * c : 2 * c + 2] *= float(scales[r, c])
    return error(mine, torch.from_numpy(expected))


COMPARISONS = tuple(
    Comparison(
        operator=fp8_block_dequantise.NAME, variant=variant, against=against, distribution=name, limit=0.0, run=run
    )
    for variant, against, name, run in (
        ("whole blocks", "finegrained_fp8 Fp8Dequantize", "transformers", against_transformers),
        ("ragged", "finegrained_fp8 _dequantize_fp8_weight", "transformers", against_transformers_ragged),
        ("every code", "float8_e4m3fn cast", "ml_dtypes", against_ml_dtypes),
    )
)

"""Quantised normalisation against other people's normalisation and quantisation, one after the other."""

from __future__ import annotations

import importlib
from functools import partial

import torch

from day0.reference_ops import rms_norm_quantise
from day0.reference_ops.agreement._comparison import Comparison, worst
from day0.reference_ops.agreement.rms_norm import EPS, inputs

__all__ = ["COMPARISONS"]


def _llama(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    module = LlamaRMSNorm(x.shape[-1], EPS)
    module.weight = torch.nn.Parameter(weight)
    with torch.no_grad():
        normed: torch.Tensor = module(x)
    return normed


def against_compressed_tensors(group: int) -> float:
    """Codes and scales of dynamic quantisation, by token or by group; none of the groups is all zeros."""
    quantization = importlib.import_module("compressed_tensors.quantization")
    forward = importlib.import_module("compressed_tensors.quantization.lifecycle.forward")
    utils = importlib.import_module("compressed_tensors.quantization.utils")
    x, weight = inputs(torch.bfloat16)
    args = quantization.QuantizationArgs(
        num_bits=8,
        type="float",
        strategy="group" if group else "token",
        group_size=group or None,
        symmetric=True,
        dynamic=True,
    )
    # By token it takes a batch of sequences.
    normed = _llama(x, weight).float() if group else _llama(x, weight).float()[None]
    scale, zero = utils.compute_dynamic_scales_and_zp(normed, args, torch.nn.Module())
    codes = forward.quantize(normed, scale, zero, args, dtype=torch.float8_e4m3fn)
    mine, scales = rms_norm_quantise.reference(x, weight, EPS, group, False)
    return worst((mine.float(), codes.float().reshape(mine.shape)), (scales, scale.reshape(scales.shape)))


def against_numpy(power_of_two: bool) -> float:
    """Group by group, cast by ml_dtypes; 576 = 4 * 128 + 64, so the last group is short."""
    import ml_dtypes
    import numpy

    x, weight = inputs(torch.bfloat16)
    x[3] = 0.0
    normed = _llama(x, weight).float().numpy()
    codes, scales = [], []
    for begin in range(0, 576, 128):
        part = normed[:, begin : begin + 128]
        scale = (numpy.maximum(numpy.abs(part).max(-1), numpy.float32(1e-10)) / numpy.float32(448)).astype("float32")
        if power_of_two:
            scale = numpy.exp2(numpy.ceil(numpy.log2(scale.astype("float64")))).astype("float32")
        codes.append((part / scale[:, None]).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).astype("float32"))
        scales.append(scale)
    mine, factors = rms_norm_quantise.reference(x, weight, EPS, 128, power_of_two)
    theirs = torch.from_numpy(numpy.concatenate(codes, -1)), torch.from_numpy(numpy.stack(scales, -1))
    return worst((mine.float(), theirs[0]), (factors, theirs[1]))


def _comparison(variant: str, against: str, distribution: str, run: partial[float]) -> Comparison:
    return Comparison(
        operator=rms_norm_quantise.NAME, variant=variant, against=against, distribution=distribution, limit=0.0, run=run
    )


COMPARISONS = (
    _comparison(
        "one scale a token",
        "transformers llama LlamaRMSNorm, compressed_tensors quantize",
        "compressed-tensors",
        partial(against_compressed_tensors, 0),
    ),
    _comparison(
        "groups of 64",
        "transformers llama LlamaRMSNorm, compressed_tensors quantize",
        "compressed-tensors",
        partial(against_compressed_tensors, 64),
    ),
    _comparison(
        "groups of 128, the last short",
        "transformers llama LlamaRMSNorm, NumPy with a cast by ml_dtypes",
        "ml_dtypes",
        partial(against_numpy, False),
    ),
    _comparison(
        "powers of two, groups of 128, the last short",
        "transformers llama LlamaRMSNorm, NumPy with a cast by ml_dtypes",
        "ml_dtypes",
        partial(against_numpy, True),
    ),
)

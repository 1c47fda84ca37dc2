"""MXFP4 decoding against three decoders: every byte under every scale byte that they read as the specification does.

Scale byte 255 is NaN in the specification, in ml_dtypes and here, whatever the code. The two other decoders do not know
it: compressed-tensors has an infinite scale (NaN for code 0 alone), transformers 2^128 (0 stays 0, 0.5 stays finite).
"""

from __future__ import annotations

import torch

from day0.reference_ops import mxfp4_decode
from day0.reference_ops.agreement._comparison import Comparison, error
from day0.reference_ops.agreement._modules import module

__all__ = ["COMPARISONS"]


def all_pairs(first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return every byte of codes under the scale bytes of a range: codes [X, 256], scales [X, 16]."""
    rows = last - first + 1
    codes = torch.arange(256, dtype=torch.uint8).expand(rows, 256).contiguous()
    scales = torch.arange(first, last + 1, dtype=torch.uint8)[:, None].expand(rows, 16).contiguous()
    return codes, scales


def signed_error(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the error, infinite also where the sign of a zero differs."""
    numbers = ~torch.isnan(theirs)
    same = torch.equal(torch.signbit(mine[numbers]), torch.signbit(theirs[numbers]))
    return error(mine, theirs) if same else float("inf")


def against_ml_dtypes(order: str) -> float:
    """Every byte under every scale byte, to four dtypes; the order of the elements is spelled out with loops."""
    import ml_dtypes
    import numpy

    codes, scales = all_pairs(0, 255)
    places = [-1] * 512
    for byte in range(256):
        block, inner = divmod(byte, 16)
        low, high = (2 * byte, 2 * byte + 1) if order == "low_first" else (32 * block + inner, 32 * block + inner + 16)
        places[low], places[high] = byte, 256 + byte
    halves = numpy.concatenate((codes.numpy() % 16, codes.numpy() // 16), axis=1)[:, places]
    values = torch.from_numpy(halves.view(ml_dtypes.float4_e2m1fn).astype("float64"))
    powers = torch.from_numpy(scales.numpy().view(ml_dtypes.float8_e8m0fnu).astype("float64"))
    expected = values * powers.repeat_interleave(32, dim=-1)
    return max(
        signed_error(mxfp4_decode.reference(codes, scales, dtype, order), expected.to(dtype))
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    )


def against_ml_dtypes_low_first() -> float:
    """Low nibble first."""
    return against_ml_dtypes("low_first")


def against_ml_dtypes_split() -> float:
    """GGUF's order."""
    return against_ml_dtypes("split")


def against_compressed_tensors() -> float:
    """Scale bytes 0 to 254, bfloat16."""
    quantization = module("compressed_tensors.quantization")
    compressor = module("compressed_tensors.compressors.mxfp4.base").MXFP4PackedCompressor
    codes, scales = all_pairs(0, 254)
    weights = quantization.QuantizationArgs(
        num_bits=4, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8
    )
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=weights)
    theirs = compressor.decompress({"weight_packed": codes, "weight_scale": scales}, scheme)
    return signed_error(mxfp4_decode.reference(codes, scales, torch.bfloat16), theirs["weight"])


def against_transformers() -> float:
    """Scale bytes 0 to 254; theirs takes [experts, rows, blocks, 16] and returns the transpose."""
    decode = module("transformers.integrations.mxfp4").convert_moe_packed_tensors
    codes, scales = all_pairs(0, 254)
    return max(
        signed_error(
            mxfp4_decode.reference(codes, scales, dtype),
            decode(codes.unflatten(-1, (16, 16))[None], scales[None], dtype=dtype)[0].T,
        )
        for dtype in (torch.float32, torch.bfloat16)
    )


COMPARISONS = tuple(
    Comparison(operator=mxfp4_decode.NAME, variant=variant, against=against, distribution=name, limit=0.0, run=run)
    for variant, against, name, run in (
        ("low_first", "float4_e2m1fn, float8_e8m0fnu", "ml_dtypes", against_ml_dtypes_low_first),
        ("split", "float4_e2m1fn, float8_e8m0fnu", "ml_dtypes", against_ml_dtypes_split),
        ("low_first", "MXFP4PackedCompressor.decompress", "compressed-tensors", against_compressed_tensors),
        ("low_first", "integrations/mxfp4.py convert_moe_packed_tensors", "transformers", against_transformers),
    )
)

"""MXFP4 both ways: encode a weight into four-bit codes with block scales, decode it again.

Shape suffixes: O output rows, I input values, P = I / 2 packed bytes, G = I / 32 blocks.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from day0.errors import Day0Error
from day0.reference_ops import mxfp4_decode
from day0.reference_ops.mxfp4_decode import BLOCK, E2M1_VALUES

__all__ = ["Mxfp4", "decode_mxfp4", "encode_mxfp4"]

_MIDPOINTS = tuple((low + high) / 2 for low, high in itertools.pairwise(E2M1_VALUES))
_LARGEST_EXPONENT = 2
"""Of E2M1: its largest value is 1.5 * 2^2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mxfp4:
    """A weight in MXFP4: codes [.., P] with the low nibble first, scales [.., G] as E8M0 bytes."""

    codes: torch.Tensor
    scales: torch.Tensor


def encode_mxfp4(weight_OI: torch.Tensor) -> Mxfp4:
    """Encode along the last dimension, rounding to nearest, ties to the even code.

    The scale of a block is 2^(floor(log2(largest magnitude)) - 2), as in the OCP MX specification 1.0; what then lies
    beyond 6 is clamped to 6. A block of zeros gets scale byte 0.
    Raises Day0Error for a row that is no multiple of 32 values, or values that are not finite.
    """
    if weight_OI.shape[-1] % BLOCK:
        raise Day0Error(
            "encode_mxfp4", f"a row of {weight_OI.shape[-1]} values is no multiple of {BLOCK}", hint="pad the row"
        )
    if not bool(torch.isfinite(weight_OI).all()):
        raise Day0Error("encode_mxfp4", "the weight holds NaN or infinity", hint="find out where it comes from")
    blocks = weight_OI.to(torch.float64).unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(dim=-1)
    # frexp gives m * 2^e with m in [0.5, 1): exact, where a logarithm is not.
    exponent = torch.frexp(largest).exponent - 1 - _LARGEST_EXPONENT
    byte = (exponent + 127).clamp(0, 254)
    byte = torch.where(largest == 0, 0, byte)
    scaled = torch.ldexp(blocks, (127 - byte)[..., None].to(torch.float64))
    return Mxfp4(codes=_pack(_nearest_code(scaled)), scales=byte.to(torch.uint8))


def _nearest_code(scaled: torch.Tensor) -> torch.Tensor:
    magnitude = scaled.abs()
    code = torch.zeros(scaled.shape, dtype=torch.int64, device=scaled.device)
    for number, middle in enumerate(_MIDPOINTS):
        # On the middle the even code wins: up from an odd one, not from an even one.
        above = magnitude >= middle if number % 2 else magnitude > middle
        code = code + above.to(torch.int64)
    return code + 8 * torch.signbit(scaled).to(torch.int64)


def _pack(code: torch.Tensor) -> torch.Tensor:
    pairs = code.flatten(-2).unflatten(-1, (-1, 2))
    packed: torch.Tensor = pairs[..., 0] | (pairs[..., 1] << 4)
    return packed.to(torch.uint8)


def decode_mxfp4(packed: Mxfp4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Decode to values [.., I] in `dtype`; every product is exact in float32, rounding happens once, at the end."""
    return mxfp4_decode.reference(packed.codes, packed.scales, dtype)

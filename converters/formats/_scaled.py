"""What the formats with multipliers share: products in float32, as every loader of them computes."""

from __future__ import annotations

import math

import torch

from day0.converters.header import Stored
from day0.converters.reading import Reader
from day0.converters.weight import Weight
from day0.errors import Day0Error

__all__ = ["SCALES", "bits_of_scales", "check_finite", "read_scale", "significant_bits", "spread"]

PIECE = 1 << 20
SCALES = ("F32", "BF16", "F16", "F8_E8M0", "U8")
"""U8 beside FP8 means an exponent, as in OCP MX: a multiplier of 120 would be no weight."""


def read_scale(weight: Weight, reader: Reader, part: str = "scales") -> torch.Tensor:
    """Return all scales of a weight as float32."""
    raw = reader.whole(weight.parts[part], into=part)
    return widened(raw)


def bits_of_scales(weight: Weight, reader: Reader) -> int:
    """Return how many bits the significands of all scales need, a piece at a time: a stack may have gigabytes of them."""
    stored = weight.parts["scales"]
    count, most = math.prod(stored.shape), 1
    for begin in range(0, count, PIECE):
        some = reader.piece(stored, begin, (min(PIECE, count - begin),), into="bits")
        most = max(most, significant_bits(widened(some)))
    return most


def widened(scales: torch.Tensor) -> torch.Tensor:
    """Return scales as float32; bytes are powers of two, and 255 is NaN."""
    if scales.dtype in (torch.uint8, torch.float8_e8m0fnu):
        exponent = scales.view(torch.uint8).to(torch.int32)
        power = torch.ldexp(torch.ones(exponent.shape), exponent - 127)
        return torch.where(exponent == 255, float("nan"), power)
    return scales.to(torch.float32)


def check_finite(stored: Stored, scales: torch.Tensor) -> None:
    """Raise Day0Error for scales that no weight can have.

    NaN among powers of two is one of their codes: it is for the verdict of the weight to say, which names the row.
    """
    if stored.dtype in ("U8", "F8_E8M0"):
        return
    if not bool((torch.isfinite(scales) & (scales >= 0)).all()):
        what = f"{stored.name} holds scales that are negative, infinite or NaN"
        raise Day0Error(str(stored.file), what, hint="fetch the checkpoint again")


def spread(scales: torch.Tensor, rows: int, columns: int, block: tuple[int, int]) -> torch.Tensor:
    """Repeat the scale of each block over its rows and columns, cut at the edges."""
    wide = scales.repeat_interleave(block[0], dim=-2).repeat_interleave(block[1], dim=-1)
    return wide[..., :rows, :columns]


def significant_bits(scales: torch.Tensor) -> int:
    """Return how many bits the significands of float32 values need at most: 1 for powers of two."""
    bits = scales.reshape(-1).to(torch.float32).contiguous().view(torch.int32) & 0x7FFFFF
    if bits.numel() == 0:
        return 1
    lowest = bits & -bits
    zeros = torch.where(bits == 0, 23, torch.log2(lowest.clamp(min=1).to(torch.float64)).to(torch.int32))
    return 24 - int(zeros.min())

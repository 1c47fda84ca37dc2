"""How many bytes a weight takes in each storage format, scales included."""

from __future__ import annotations

import math
from dataclasses import dataclass

from day0.errors import Day0Error, near_names

__all__ = ["FORMATS", "Format", "format_named", "format_of_dtype"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """Bits of one value, and what the scales beside it take."""

    name: str
    bits: int
    group: int = 0
    """Values of a row that share a scale; 0 where there is no such scale."""
    scale_bytes: int = 0
    square: bool = False
    """The scale belongs to a square of `group` rows and `group` columns, not to a run within a row."""
    meaning: str

    def bytes_of(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a tensor: rows are packed each by itself, groups at the edge are whole ones."""
        columns = shape[-1] if shape else 1
        rows = math.prod(shape[:-1])
        values = rows * -(-columns * self.bits // 8)
        if not self.group:
            return values
        across = -(-columns // self.group)
        if self.square:
            matrices, height = math.prod(shape[:-2]), shape[-2] if len(shape) > 1 else 1
            return values + matrices * -(-height // self.group) * across * self.scale_bytes
        return values + rows * across * self.scale_bytes


FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        Format(name="fp32", bits=32, meaning="float32"),
        Format(name="bf16", bits=16, meaning="bfloat16"),
        Format(name="fp16", bits=16, meaning="float16"),
        Format(
            name="fp8", bits=8, group=128, scale_bytes=4, square=True, meaning="e4m3, a float32 for 128 x 128 values"
        ),
        Format(name="mxfp8", bits=8, group=32, scale_bytes=1, meaning="e4m3, an exponent byte for 32 values"),
        Format(name="int8", bits=8, meaning="int8; its scale for a row is left out"),
        Format(name="mxfp4", bits=4, group=32, scale_bytes=1, meaning="e2m1, an exponent byte for 32 values"),
        Format(name="nvfp4", bits=4, group=16, scale_bytes=1, meaning="e2m1, an e4m3 byte for 16 values"),
        Format(name="int4", bits=4, group=32, scale_bytes=2, meaning="int4, a bfloat16 for 32 values"),
        Format(name="int4-g128", bits=4, group=128, scale_bytes=2, meaning="int4, a bfloat16 for 128 values"),
    )
}

_OF_DTYPE = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp32", "float8_e4m3fn": "fp8"}


def format_named(name: str, where: str) -> Format:
    """Return a format. Raises Day0Error for one that is not known, with near names."""
    if name not in FORMATS:
        hint = near_names(name, tuple(FORMATS)) or f"formats: {', '.join(FORMATS)}"
        raise Day0Error(where, f"there is no weight format '{name}'", hint=hint)
    return FORMATS[name]


def format_of_dtype(dtype: str) -> str:
    """Return the name of the format in which a tensor of that dtype lies; for others, its width as an integer."""
    return _OF_DTYPE.get(dtype, "int8")

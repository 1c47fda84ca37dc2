"""Short names of dtypes in the text, and torch's names for them."""

from __future__ import annotations

__all__ = ["ITEM_BYTES", "LAYOUTS", "MEMORY_FORMATS", "QSCHEMES", "SHORT_OF", "TORCH_OF"]

TORCH_OF = {
    "bf16": "bfloat16",
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "c32": "complex32",
    "c64": "complex64",
    "c128": "complex128",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "b8": "bool",
    "u8": "uint8",
}
"""The thirteen short names that public readers know."""

SHORT_OF = {name: short for short, name in TORCH_OF.items()}

ITEM_BYTES = {
    "bfloat16": 2,
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "bool": 1,
    "uint8": 1,
    # The rest has no short name: public readers stop at them, `--extended` writes torch's own name.
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
}
"""Bytes of one element, by torch's name; every dtype that a text may name."""

LAYOUTS = frozenset({"strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"})
MEMORY_FORMATS = frozenset({"contiguous_format", "channels_last", "channels_last_3d", "preserve_format"})
QSCHEMES = frozenset({"per_tensor_affine", "per_channel_affine", "per_tensor_symmetric", "per_channel_symmetric"})

"""FP8 with one scale for 128 values of a row."""

from __future__ import annotations

from day0.converters.targets._config import block_config
from day0.converters.targets._fp8 import fp8_target

__all__ = ["TARGET"]

TARGET = fp8_target(
    "fp8-1x128",
    "FP8 with one scale for 128 values of a row",
    rows=1,
    columns=128,
    suffix="_scale_inv",
    finer=("mxfp8",),
    quantisation=block_config(1, 128),
)

"""FP8 with one scale for 128 x 128 values, as DeepSeek stores it."""

from __future__ import annotations

from day0.converters.targets._config import block_config
from day0.converters.targets._fp8 import fp8_target

__all__ = ["TARGET"]

TARGET = fp8_target(
    "fp8-128x128",
    "FP8 with one scale for 128 x 128 values, as DeepSeek stores it",
    rows=128,
    columns=128,
    suffix="_scale_inv",
    finer=("fp8-1x128", "mxfp8"),
    quantisation=block_config(128, 128),
)

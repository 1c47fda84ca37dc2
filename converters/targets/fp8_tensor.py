"""FP8 with one scale for a matrix."""

from __future__ import annotations

from typing import Any

from day0.converters.targets._config import packed_config, scheme
from day0.converters.targets._fp8 import fp8_target
from day0.records.convert import ConversionParameters

__all__ = ["TARGET"]


def _entry(parameters: ConversionParameters) -> dict[str, Any]:
    return packed_config("float-quantized", scheme(num_bits=8, type="float", strategy="tensor"))


TARGET = fp8_target(
    "fp8-tensor",
    "FP8 with one scale for a matrix",
    rows=0,
    columns=0,
    suffix="_scale",
    finer=("fp8-128x128", "fp8-1x128", "mxfp8"),
    quantisation=_entry,
)

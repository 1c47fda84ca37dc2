"""float32."""

from __future__ import annotations

from day0.converters.tables import FP32
from day0.converters.targets._wide import wide_target

__all__ = ["TARGET"]

TARGET = wide_target(
    FP32,
    "float32, without scales",
    from_mx="exact for scale bytes up to 252 (subnormal for 0); beyond, what overflows is saturated",
)

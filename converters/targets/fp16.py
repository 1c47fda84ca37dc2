"""float16."""

from __future__ import annotations

from day0.converters.tables import FP16
from day0.converters.targets._wide import wide_target

__all__ = ["TARGET"]

TARGET = wide_target(
    FP16,
    "float16, without scales",
    from_mx="exact for scale bytes 104 to 140 (subnormal up to 113); beyond, rounded or saturated",
)

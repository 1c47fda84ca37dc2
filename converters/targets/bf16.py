"""bfloat16."""

from __future__ import annotations

from day0.converters.tables import BF16
from day0.converters.targets._wide import wide_target

__all__ = ["TARGET"]

TARGET = wide_target(
    BF16,
    "bfloat16, without scales",
    from_mx="exact for scale bytes up to 252 (subnormal for 0 and 1); beyond, what overflows is saturated",
)

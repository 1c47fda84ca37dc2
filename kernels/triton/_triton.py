"""Triton, where it is installed, and what every kernel here asks of a call."""

from __future__ import annotations

from functools import cache
from importlib import import_module, util
from typing import Any

from day0.implementation import Accepted, Call, Rejected

__all__ = ["HALVES", "has_triton", "next_power_of_2", "triton_and_language"]

HALVES = frozenset({"bfloat16", "float16"})
"""Dtypes whose products a matrix unit adds up in float32. It would round float32 inputs to fewer bits."""


def has_triton(call: Call) -> Accepted | Rejected:
    """Triton is installed."""
    return Accepted() if util.find_spec("triton") else Rejected("triton is not installed")


@cache
def triton_and_language() -> tuple[Any, Any]:
    """Import `triton` and `triton.language`, which cost a second: at the first call of a kernel, not before."""
    return import_module("triton"), import_module("triton.language")


def next_power_of_2(size: int, at_least: int = 1) -> int:
    """Return the smallest power of two that is neither below `size` nor below `at_least`."""
    return 1 << (max(size, at_least) - 1).bit_length()

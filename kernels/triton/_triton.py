"""Triton, where it is installed, and what every kernel here asks of a call."""

from __future__ import annotations

from functools import cache
from importlib import import_module, util
from typing import Any, NamedTuple

from day0.implementation import Accepted, Call, Rejected

__all__ = [
    "FLOATS",
    "HALVES",
    "LARGEST_ROW",
    "Tile",
    "has_triton",
    "next_power_of_2",
    "rows_of_tile",
    "triton_and_language",
]

HALVES = frozenset({"bfloat16", "float16"})
"""Dtypes whose products a matrix unit adds up in float32. It would round float32 inputs to fewer bits."""

FLOATS = HALVES | {"float32"}
"""Dtypes that kernels without products of matrices compute in float32 from."""
LARGEST_ROW = 65536
"""Values of a row that one program holds in registers: 2048 for each of 32 warps."""
VALUES_OF_A_WARP = 2048


class Tile(NamedTuple):
    """Rows and columns of one program, powers of two, and its warps."""

    rows: int
    columns: int
    warps: int


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


def rows_of_tile(columns: int, elements: int, warps: int) -> Tile:
    """Return a tile of whole rows with about so many elements, and warps enough to hold it in registers."""
    width = next_power_of_2(columns)
    rows = max(1, elements // width)
    return Tile(rows, width, min(32, max(warps, rows * width // VALUES_OF_A_WARP)))

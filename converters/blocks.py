"""Which power of two a block of FP8 values shares, so that no value changes where that is possible.

A group of 32 codes with scale byte s has the exponent x = s - 127. Stored with the scale 2^b, its codes are multiplied
by 2^k, k = x - b. Each magnitude of E2M1 survives a window of k; a group survives what all of its codes survive.

Shape suffixes: R rows, G groups of a row, P = 16 G packed bytes; M, N blocks.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from day0.converters.tables import HALVES, HIGHEST, LOWEST, FloatLayout, encode

__all__ = [
    "ALL_CODES",
    "LEAST_SCALE",
    "Bounds",
    "bounds_of",
    "group_window",
    "group_windows",
    "present",
    "reduce_blocks",
]

LEAST_SCALE = -126
"""A float32 scale stays normal, and an E8M0 scale stays in range."""
NEVER = 1 << 14
"""No exponent reaches it: neutral in maxima and minima."""
NAN_BYTE = 255


@functools.cache
def magnitude_windows(layout: FloatLayout) -> tuple[tuple[int, int, int], ...]:
    """Return for the magnitudes 0 to 7 the lowest exact, the lowest normal and the highest exact k."""
    found = [(-NEVER, -NEVER, NEVER)]
    for halves in HALVES[1:]:
        results = {k: encode(layout, halves, k, flush=False) for k in range(LOWEST, HIGHEST + 3)}
        exact = [k for k, (_, right, _) in results.items() if right]
        normal = [k for k in exact if not results[k][2]]
        found.append((min(exact), min(normal), max(exact)))
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What a block asks of b: top <= b so that nothing overflows, b <= exact so that nothing is lost, b <= normal."""

    top: torch.Tensor
    exact: torch.Tensor
    normal: torch.Tensor

    def scale(self) -> torch.Tensor:
        """Return b: the smallest that nothing overflows with, so that as little as possible becomes subnormal."""
        b = self.top.clamp(min=LEAST_SCALE)
        # A block of zeros asks nothing: any scale will do, and 1 is the plainest.
        return torch.where(self.top == -NEVER, 0, b)

    def settled(self) -> torch.Tensor:
        """Return where b leaves every value exact and normal."""
        return self.scale() <= self.normal

    def merged(self, other: Bounds, where: torch.Tensor) -> Bounds:
        """Take the other's where the mask says so."""
        return Bounds(
            top=torch.where(where, other.top, self.top),
            exact=torch.where(where, other.exact, self.exact),
            normal=torch.where(where, other.normal, self.normal),
        )

    def joined(self, other: Bounds) -> Bounds:
        """Return what both ask: for a block that spans several tiles."""
        return Bounds(
            top=torch.maximum(self.top, other.top),
            exact=torch.minimum(self.exact, other.exact),
            normal=torch.minimum(self.normal, other.normal),
        )


def present(codes_RP: torch.Tensor) -> torch.Tensor:
    """Return uint8 [R, G]: bit m is set where a group holds a code of magnitude m, m = 1..7; bit 0 is never set."""
    words = codes_RP.reshape(codes_RP.shape[0], -1, 16).to(torch.int32)
    marks = _marks()[words]
    # A bitwise or over the 16 bytes, by halving.
    for half in (8, 4, 2, 1):
        marks = marks[..., :half] | marks[..., half : 2 * half]
    return marks[..., 0]


@functools.cache
def _marks() -> torch.Tensor:
    codes = torch.arange(256)
    low, high = (1 << (codes & 7)) & 0xFE, (1 << ((codes >> 4) & 7)) & 0xFE
    return (low | high).to(torch.uint8)


@functools.cache
def _windows_of_sets(layout: FloatLayout) -> torch.Tensor:
    """Return int16 [256, 3]: for a set of magnitudes the lowest exact, the lowest normal and the highest exact k."""
    one = magnitude_windows(layout)
    rows = []
    for marks in range(256):
        inside = [one[m] for m in range(1, 8) if marks >> m & 1]
        exact = max((low for low, _, _ in inside), default=-NEVER)
        normal = max((low for _, low, _ in inside), default=-NEVER)
        rows.append((exact, normal, min((high for _, _, high in inside), default=NEVER)))
    return torch.tensor(rows, dtype=torch.int16)


ALL_CODES = 0xFE
"""The set of all magnitudes."""


def group_window(layout: FloatLayout, marks: int) -> tuple[int, int, int]:
    """Return for a set of magnitudes the lowest exact, the lowest normal and the highest exact k."""
    low, normal, high = (int(one) for one in _windows_of_sets(layout)[marks])
    return low, normal, high


def group_windows(layout: FloatLayout, bytes_RG: torch.Tensor, marks_RG: torch.Tensor | None) -> Bounds:
    """Return what each group asks. Without marks (codes not read) a group may hold every code.

    Groups of zeros and groups whose scale is NaN ask nothing.
    """
    exponent = bytes_RG.to(torch.int16) - 127
    windows = _windows_of_sets(layout)
    if marks_RG is None:
        low, normal, high = group_window(layout, ALL_CODES)
        silent = bytes_RG == NAN_BYTE
        parts = (exponent - high, exponent - low, exponent - normal)
    else:
        chosen = windows[marks_RG.to(torch.int32)]
        silent = (bytes_RG == NAN_BYTE) | (marks_RG == 0)
        parts = (exponent - chosen[..., 2], exponent - chosen[..., 0], exponent - chosen[..., 1])
    top = torch.where(silent, -NEVER, parts[0])
    return Bounds(top=top, exact=torch.where(silent, NEVER, parts[1]), normal=torch.where(silent, NEVER, parts[2]))


def reduce_blocks(groups: Bounds, block_rows: int, block_groups: int) -> Bounds:
    """Return what each block asks; blocks at the edges may be smaller."""
    return Bounds(
        top=_pool(groups.top, block_rows, block_groups, largest=True, fill=-NEVER),
        exact=_pool(groups.exact, block_rows, block_groups, largest=False, fill=NEVER),
        normal=_pool(groups.normal, block_rows, block_groups, largest=False, fill=NEVER),
    )


def _pool(values_RG: torch.Tensor, block_rows: int, block_groups: int, *, largest: bool, fill: int) -> torch.Tensor:
    rows, groups = values_RG.shape
    down, right = -rows % block_rows, -groups % block_groups
    if down:
        values_RG = torch.nn.functional.pad(values_RG, (0, 0, 0, down), value=fill)
    # Down first, over rows that lie together: the other way round is several times slower.
    bands_MG = _reduce(values_RG.unflatten(0, (-1, block_rows)), 1, largest=largest)
    if right:
        bands_MG = torch.nn.functional.pad(bands_MG, (0, right), value=fill)
    return _reduce(bands_MG.unflatten(1, (-1, block_groups)), 2, largest=largest)


def _reduce(values: torch.Tensor, dim: int, *, largest: bool) -> torch.Tensor:
    return values.amax(dim=dim) if largest else values.amin(dim=dim)


def _plain(layout: FloatLayout, bytes_RG: torch.Tensor, block_rows: int, block_groups: int) -> Bounds:
    """Return what blocks ask by their scales alone: largest and smallest say it all, where none is NaN."""
    largest = _pool(bytes_RG, block_rows, block_groups, largest=True, fill=0)
    if bool((largest == NAN_BYTE).any()):
        return reduce_blocks(group_windows(layout, bytes_RG, None), block_rows, block_groups)
    smallest = _pool(bytes_RG, block_rows, block_groups, largest=False, fill=NAN_BYTE)
    low, normal, high = group_window(layout, ALL_CODES)
    top, bottom = largest.to(torch.int16) - 127, smallest.to(torch.int16) - 127
    return Bounds(top=top - high, exact=bottom - low, normal=bottom - normal)


def bounds_of(
    layout: FloatLayout, bytes_RG: torch.Tensor, codes_RP: torch.Tensor | None, block_rows: int, block_groups: int
) -> Bounds:
    """Return what the blocks of a tile ask.

    From the scales alone where these settle it; codes are looked at only for the blocks that are left, so that the
    same bytes come out whether or not somebody looked at them before.
    """
    plain = _plain(layout, bytes_RG, block_rows, block_groups)
    settled = plain.settled()
    if codes_RP is None or bool(settled.all()):
        return plain
    seen = reduce_blocks(group_windows(layout, bytes_RG, present(codes_RP)), block_rows, block_groups)
    return plain.merged(seen, ~settled)

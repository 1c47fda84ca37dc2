"""Whether something grows: the median of all slopes between two samples (Theil-Sen), with its interval by ranks (Sen 1968).

Outliers do not move it, and no shape of the noise is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LEAST", "Trend", "theil_sen"]

LEAST = 4
"""With fewer samples no interval of 95 % exists."""
MOST = 400
"""Samples that are compared each with each; of more, every n-th is taken."""
Z = 1.959964
"""Of 95 %, both sides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trend:
    """A slope with the interval in which it lies with 95 %."""

    slope: float
    low: float
    high: float
    samples: int


def theil_sen(x: Sequence[float], y: Sequence[float]) -> Trend | None:
    """Return the slope of y over x; None with fewer than four samples, or where all x are one.

    Raises ValueError for another number of x than of y.
    """
    if len(x) != len(y):
        raise ValueError(f"{len(x)} places and {len(y)} values")
    every = max(1, -(-len(x) // MOST))
    pairs = list(zip(x, y, strict=True))[::every]
    slopes = sorted(
        (right[1] - left[1]) / (right[0] - left[0])
        for number, left in enumerate(pairs)
        for right in pairs[number + 1 :]
        if right[0] != left[0]
    )
    if len(pairs) < LEAST or not slopes:
        return None
    count, samples = len(slopes), len(pairs)
    away = Z * math.sqrt(samples * (samples - 1) * (2 * samples + 5) / 18.0)
    low = max(0, math.floor((count - away) / 2.0))
    high = min(count - 1, math.ceil((count + away) / 2.0))
    middle = (slopes[(count - 1) // 2] + slopes[count // 2]) / 2.0
    return Trend(slope=middle, low=slopes[low], high=slopes[high], samples=samples)

"""Intervals from few samples, by drawing from them again and again (bootstrap); always the same draws."""

from __future__ import annotations

from collections.abc import Callable

import torch

from day0.analyzers.canary.gates import Figure

__all__ = ["bootstrap", "variation"]

DRAWS = 400
CONFIDENCE = 0.95


def bootstrap(samples_N: torch.Tensor, statistic: Callable[[torch.Tensor], torch.Tensor], *, unit: str = "") -> Figure:
    """Return a statistic of samples [N, ...] (float64) with the interval in which 95 % of redrawn ones lie.

    `statistic` takes samples [draws, N, ...] and returns [draws]. Two samples are the least.
    """
    count = samples_N.shape[0]
    if count < 2:
        return Figure(None, why=f"{count} samples say nothing of how it scatters")
    wide_N = samples_N.to(torch.float64)
    value = float(statistic(wide_N[None])[0])
    places = torch.randint(0, count, (DRAWS, count), generator=torch.Generator().manual_seed(1))
    drawn = statistic(wide_N[places])
    if not bool(torch.isfinite(drawn).all()):
        return Figure(value, value, value, count, unit)
    edge = (1.0 - CONFIDENCE) / 2.0
    low, high = (float(torch.quantile(drawn, one)) for one in (edge, 1.0 - edge))
    return Figure(value, min(low, value), max(high, value), count, unit)


def variation(seconds: list[float]) -> Figure:
    """Return the coefficient of variation of times, standard deviation over mean, with its interval."""
    if not seconds or not sum(seconds) > 0.0:
        return Figure(None, why="no time passes on this device")

    def spread(drawn: torch.Tensor) -> torch.Tensor:
        return drawn.std(dim=-1, unbiased=True) / drawn.mean(dim=-1)

    return bootstrap(torch.tensor(seconds, dtype=torch.float64), spread)

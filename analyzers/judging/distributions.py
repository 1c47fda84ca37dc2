"""Whether drawn numbers follow a distribution, at the false-alarm rate that is asked for.

Every bound holds for any number of draws, however small: the inequality of Dvoretzky, Kiefer and Wolfowitz with Massart's
constant for the whole distribution, Hoeffding's for means of bounded numbers. No normal approximation.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from day0.analyzers.judging.judgement import Judgement

__all__ = ["FALSE_ALARM", "follows", "independent", "mean_is", "rows_differ"]

FALSE_ALARM = 1e-10
"""Of one test: with ten of them a case, one right generator in 1e9 cases is called wrong."""

Distribution = Callable[[torch.Tensor], torch.Tensor]
"""The share of draws at or below a number, in float64."""


def follows(draws: torch.Tensor, at_or_below: Distribution, below: Distribution, what: str) -> Judgement:
    """The largest distance between the shares that were drawn and those of the distribution is within the bound.

    `below` is the share strictly below a number: the same for a continuous distribution. Draws of a narrow dtype are
    moved to the edges of their rounding by the two functions.
    """
    ordered = draws.reshape(-1).to(torch.float64).sort().values
    count = ordered.numel()
    if not count:
        return Judgement(passed=True, rule="distribution")
    limit = math.sqrt(math.log(2.0 / FALSE_ALARM) / (2.0 * count))
    place = torch.arange(count, dtype=torch.float64)
    upper = (place + 1.0) / count - at_or_below(ordered)
    lower = below(ordered) - place / count
    distance = torch.maximum(upper, lower).nan_to_num(nan=float("inf"))
    # Of equal numbers only the last is a step upwards and the first one downwards.
    steps = torch.ones(count, dtype=torch.bool)
    steps[:-1] = ordered[1:] != ordered[:-1]
    starts = torch.ones(count, dtype=torch.bool)
    starts[1:] = steps[:-1]
    distance = torch.maximum(torch.where(steps, upper, -1.0), torch.where(starts, lower, -1.0)).nan_to_num(nan=2.0)
    worst = float(distance.max())
    reason = "" if worst <= limit else f"{count} draws do not look {what}: their shares are up to {worst:.3g} off"
    return _judged(worst, limit, reason)


def mean_is(draws: torch.Tensor, mean: float, low: float, high: float, what: str) -> Judgement:
    """The mean of numbers between `low` and `high` is within Hoeffding's bound of `mean`."""
    count = draws.numel()
    if not count or low == high:
        return Judgement(passed=True, rule="distribution")
    limit = (high - low) * math.sqrt(math.log(2.0 / FALSE_ALARM) / (2.0 * count))
    off = abs(float(draws.to(torch.float64).mean()) - mean)
    return _judged(
        off, limit, "" if off <= limit else f"{what} is {off:.3g} off its mean of {mean:.3g} in {count} draws"
    )


def independent(uniform: torch.Tensor) -> Judgement:
    """Neighbours along every dimension have nothing to do with each other.

    `uniform` are the draws as numbers between 0 and 1 with mean 1/2. Products of disjoint pairs are independent, so that
    Hoeffding's bound holds for their mean.
    """
    worst = Judgement(passed=True, rule="distribution")
    centred = (2.0 * uniform.to(torch.float64) - 1.0).nan_to_num(nan=0.0)
    for dim, size in enumerate(centred.shape):
        pairs = size // 2
        if not pairs:
            continue
        first, second = (
            centred.narrow(dim, 0, 2 * pairs).unflatten(dim, (pairs, 2)).select(dim + 1, k) for k in (0, 1)
        )
        found = mean_is(first * second, 0.0, -1.0, 1.0, f"the product of neighbours along dimension {dim}")
        if not found.passed:
            return found
        worst = found
    return worst


def rows_differ(draws: torch.Tensor, same_chance: float) -> Judgement:
    """No two rows of the last dimension are equal, where that is too unlikely to happen by itself.

    `same_chance` is the chance that two draws are equal.
    """
    rows = draws.reshape(-1, draws.shape[-1]) if draws.dim() > 1 else draws[None]
    count, width = rows.shape
    if count < 2 or not 0.0 < same_chance < 1.0:
        return Judgement(passed=True, rule="distribution")
    if 2.0 * math.log(count) + width * math.log(same_chance) > math.log(FALSE_ALARM):
        return Judgement(passed=True, rule="distribution")
    distinct = torch.unique(rows, dim=0).shape[0]
    reason = (
        "" if distinct == count else f"{count - distinct} of {count} rows are drawn twice: position repeats the draws"
    )
    return Judgement(passed=distinct == count, rule="distribution", reason=reason)


def _judged(error: float, limit: float, reason: str) -> Judgement:
    passed = not reason
    return Judgement(
        passed=passed,
        rule="distribution",
        reason=reason,
        error=error,
        limit=limit,
        needed=None if passed else error,
    )

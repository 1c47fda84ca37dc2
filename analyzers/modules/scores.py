"""Two task scores: whether one is worse, or whether so few questions cannot tell.

Intervals are Wilson's for one score, and Newcombe's (1998, methods 10 of both papers, from Wilson's limits) for the
difference of two: of independent answers, or of answers to the same questions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

__all__ = ["Answers", "Comparison", "compare_scores", "wilson"]

Answers = dict[str, bool]
"""Whether each question was answered right, by the question's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What two files of answers say. Scores and limits are shares, from 0 to 1."""

    answer: Literal["pass", "fail", "cannot tell"]
    reason: str
    scores: tuple[float, float]
    intervals: tuple[tuple[float, float], tuple[float, float]]
    difference: float
    """The second score less the first."""
    interval: tuple[float, float]
    questions: tuple[int, int]
    paired: bool
    confidence: float


def wilson(right: int, questions: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval in which a score lies that was measured as `right` of `questions` (at least 1)."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    share, spread = right / questions, z * z / questions
    middle = (share + spread / 2.0) / (1.0 + spread)
    half = z / (1.0 + spread) * math.sqrt(share * (1.0 - share) / questions + spread / (4.0 * questions))
    return max(0.0, middle - half), min(1.0, middle + half)


def compare_scores(
    before: Answers, after: Answers, *, paired: bool, drop: float = 0.05, confidence: float = 0.95
) -> Comparison:
    """Say whether the second score is at most `drop` below the first: pass; surely below: fail; or neither.

    `paired`: both answer the same questions, by name. Neither may be empty.
    """
    counts = [(sum(one.values()), len(one)) for one in (before, after)]
    scores = (counts[0][0] / counts[0][1], counts[1][0] / counts[1][1])
    intervals = (wilson(*counts[0], confidence), wilson(*counts[1], confidence))
    difference = scores[1] - scores[0]
    together = _correlation(before, after) if paired else 0.0
    low = difference - _spread(scores[1] - intervals[1][0], intervals[0][1] - scores[0], together)
    high = difference + _spread(intervals[1][1] - scores[1], scores[0] - intervals[0][0], together)
    answer, reason = _answer(low, high, drop, confidence)
    return Comparison(
        answer=answer,
        reason=reason,
        scores=scores,
        intervals=intervals,
        difference=difference,
        interval=(low, high),
        questions=(counts[0][1], counts[1][1]),
        paired=paired,
        confidence=confidence,
    )


def _answer(
    low: float, high: float, drop: float, confidence: float
) -> tuple[Literal["pass", "fail", "cannot tell"], str]:
    span = f"the difference lies between {low:+.1%} and {high:+.1%} with {confidence:.0%} confidence"
    if low >= -drop:
        return "pass", f"{span}: no more than {drop:.1%} is lost"
    if high < 0.0:
        return "fail", f"{span}: something is lost"
    return "cannot tell", f"{span}: it may be nothing or more than {drop:.1%}; ask more questions"


def _spread(one: float, other: float, together: float) -> float:
    return math.sqrt(max(0.0, one * one - 2.0 * together * one * other + other * other))


def _correlation(before: Answers, after: Answers) -> float:
    """Return the phi coefficient of answers to the same questions; 0 where one of them never varies."""
    both = sum(before[name] and after[name] for name in before)
    neither = sum(not before[name] and not after[name] for name in before)
    first = sum(before[name] and not after[name] for name in before)
    second = len(before) - both - neither - first
    sizes = (both + first) * (second + neither) * (both + second) * (first + neither)
    return (both * neither - first * second) / math.sqrt(sizes) if sizes else 0.0

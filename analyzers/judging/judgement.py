"""What a rule says of a result. NaN never passes by accident."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Judgement"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What one rule says. `error`, `limit` and `needed` are in the unit of the rule that decided."""

    passed: bool
    rule: str
    reason: str = ""
    error: float | None = None
    yardstick: float | None = None
    limit: float | None = None
    """The largest error that would have passed."""
    needed: float | None = None
    """The smallest limit with which this result would have passed: of a result that failed, its own error."""
    worst_index: tuple[int, ...] | None = None
    worst_got: str = ""
    worst_expected: str = ""
    notes: tuple[str, ...] = ()
    """What was left out, and what a reader should know of a result that passed."""

"""What a rule says of a result. NaN never passes by accident."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Judgement"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What one rule says. `limit` is the largest error that would have passed."""

    passed: bool
    rule: str
    reason: str = ""
    error: float | None = None
    yardstick: float | None = None
    limit: float | None = None
    worst_index: tuple[int, ...] | None = None
    worst_got: str = ""
    worst_expected: str = ""

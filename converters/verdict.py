"""How exact the conversion of a weight is, as a value that can be added up over its tiles."""

from __future__ import annotations

from dataclasses import dataclass

from day0.records.convert import ConversionParameters, Exactness

__all__ = ["REPAIR", "Verdict", "acceptable", "worst"]

REPAIR = "fetch the checkpoint again, or leave the weight out with --skip; --keep-nan is for NaN alone"
"""What to do about a refusal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What became of some values."""

    changed: int | None = 0
    """How many are not what they were; None where only the bound is known."""
    subnormal: int | None = 0
    nan: int = 0
    bound: str = ""
    refusal: str = ""
    """Why it cannot be done at all, with tensor, expert and row."""

    @property
    def exactness(self) -> Exactness:
        """In one word."""
        if self.refusal:
            return "refused"
        if self.changed is None or self.changed:
            return "bounded"
        return "exact_with_subnormals" if self.subnormal is None or self.subnormal else "exact"


def worst(one: Verdict, other: Verdict) -> Verdict:
    """Add two up: counts are sums, what is not known of one is not known of both."""
    return Verdict(
        changed=None if one.changed is None or other.changed is None else one.changed + other.changed,
        subnormal=None if one.subnormal is None or other.subnormal is None else one.subnormal + other.subnormal,
        nan=one.nan + other.nan,
        bound=one.bound or other.bound,
        refusal=one.refusal or other.refusal,
    )


def acceptable(verdict: Verdict, parameters: ConversionParameters) -> bool:
    """Say whether the parameters let it through."""
    kind = verdict.exactness
    if kind == "refused":
        return False
    if kind == "bounded":
        return parameters.allow_bounded
    # With --no-subnormal and --allow-bounded, what would be subnormal becomes zero, and counts as changed.
    return kind == "exact" or not parameters.no_subnormal or parameters.allow_bounded

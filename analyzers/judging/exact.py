"""Bit for bit."""

from __future__ import annotations

import torch

from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.words import first_true, readable, same_bits, text_at

__all__ = ["differs", "exact", "exact_by_either"]

_EQUAL = Judgement(passed=True, rule="exact", error=0.0, limit=0.0)


def exact(got: torch.Tensor, expected: torch.Tensor, *, zero_sign: bool = False) -> Judgement:
    """Bit for bit, NaN equal to NaN: for integers, lookups and copies. With `zero_sign` 0 is not -0."""
    if same_bits(got, expected):
        return _EQUAL
    return _judged(got, expected, differs(got, expected, zero_sign=zero_sign))


def exact_by_either(got: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> Judgement:
    """Every element equals that of one answer or of the other: decisions that rounding in the dtype may turn."""
    if same_bits(got, one):
        return _EQUAL
    return _judged(got, one, differs(got, one) & differs(got, other.to(got.dtype)))


def _judged(got: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor) -> Judgement:
    if not bool(wrong.any()):
        return _EQUAL
    got, expected = readable(got), readable(expected)
    index = first_true(wrong)
    distance = (got[wrong].to(torch.float64) - expected[wrong].to(torch.float64)).abs().nan_to_num(nan=float("inf"))
    largest = float(distance.max())
    return Judgement(
        passed=False,
        rule="exact",
        reason=f"{int(wrong.sum())} of {got.numel()} elements differ",
        error=largest,
        limit=0.0,
        needed=largest if largest < float("inf") else None,
        worst_index=index,
        worst_got=text_at(got, index),
        worst_expected=text_at(expected, index),
    )


def differs(got: torch.Tensor, expected: torch.Tensor, *, zero_sign: bool = False) -> torch.Tensor:
    """Return a mask of the elements that differ; NaN equals NaN, and without `zero_sign` 0 equals -0."""
    got, expected = readable(got), readable(expected)
    same = got == expected
    if got.is_floating_point():
        if zero_sign:
            same = same & (torch.signbit(got) == torch.signbit(expected))
        same = same | (torch.isnan(got) & torch.isnan(expected))
    return ~same

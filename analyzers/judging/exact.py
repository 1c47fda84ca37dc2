"""Bit for bit."""

from __future__ import annotations

import torch

from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.words import first_true, readable, text_at

__all__ = ["differs", "exact"]


def exact(got: torch.Tensor, expected: torch.Tensor) -> Judgement:
    """Bit for bit, NaN equal to NaN: for integers, lookups and copies."""
    wrong = differs(got, expected)
    if not bool(wrong.any()):
        return Judgement(passed=True, rule="exact", error=0.0, limit=0.0)
    index = first_true(wrong)
    return Judgement(
        passed=False,
        rule="exact",
        reason=f"{int(wrong.sum())} of {got.numel()} elements differ",
        limit=0.0,
        worst_index=index,
        worst_got=text_at(got, index),
        worst_expected=text_at(expected, index),
    )


def differs(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return a mask of the elements that differ; NaN equals NaN, and 0 equals -0."""
    got, expected = readable(got), readable(expected)
    same = got == expected
    if got.is_floating_point():
        same = same | (torch.isnan(got) & torch.isnan(expected))
    return ~same

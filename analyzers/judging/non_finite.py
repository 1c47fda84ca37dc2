"""NaN and infinities stand where they should."""

from __future__ import annotations

import torch

from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.words import first_true, readable, text_at

__all__ = ["non_finite"]


def non_finite(got: torch.Tensor, expected: torch.Tensor) -> Judgement:
    """NaN, +infinity and -infinity stand at the same places."""
    got, expected = readable(got), readable(expected)
    for name, test in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        wrong = test(got) != test(expected)
        if bool(wrong.any()):
            index = first_true(wrong)
            return Judgement(
                passed=False,
                rule="non_finite",
                reason=f"{int(wrong.sum())} elements differ in {name}",
                worst_index=index,
                worst_got=text_at(got, index),
                worst_expected=text_at(expected, index),
            )
    return Judgement(passed=True, rule="non_finite")

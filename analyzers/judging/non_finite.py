"""NaN and infinities stand where they should."""

from __future__ import annotations

from collections.abc import Callable

import torch

from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.words import all_finite, first_true, readable, text_at

__all__ = ["non_finite"]

_KINDS = (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf))


def non_finite(
    got: torch.Tensor,
    expected: torch.Tensor,
    *,
    golden: torch.Tensor | None = None,
    any_kind: bool | Callable[[], bool] = False,
) -> Judgement:
    """NaN, +infinity and -infinity stand at the same places.

    `expected` is the same-dtype result, `golden` the one in float64. Where the two disagree, because the dtype overflows
    on the way, either will do; a golden beyond the dtype's largest number becomes what a cast to the dtype makes of it,
    and within one rounding of that number infinity and the number itself are both right. With `any_kind` NaN and the
    infinities may stand for each other: a sum of infinite inputs is one or the other by the order of its terms. A
    function in its place is asked only if something is not finite.
    """
    dtype, got, expected = got.dtype, readable(got), readable(expected)
    rounded = readable(golden.to(dtype)) if golden is not None else expected
    if all(all_finite(one) for one in (got, expected, rounded)):
        return Judgement(passed=True, rule="non_finite")
    wrong = (_kinds(got) != _kinds(expected)) & (_kinds(got) != _kinds(rounded))
    if golden is not None and not golden.is_complex():
        wrong &= ~_at_the_edge(got, golden, dtype)
    notes = _notes(expected, rounded)
    if any_kind() if callable(any_kind) else any_kind:
        swapped = wrong & (_kinds(got) > 0) & (_kinds(expected) > 0)
        wrong &= ~swapped
        said = (
            "elements are NaN in the place of infinity or the other way round, as inputs are infinite: either is right"
        )
        notes += (f"{int(swapped.sum())} {said}",) if bool(swapped.any()) else ()
    if not bool(wrong.any()):
        return Judgement(passed=True, rule="non_finite", notes=notes)
    index = first_true(wrong)
    names = [name for name, test in _KINDS if bool((wrong & (test(got) | test(expected))).any())]
    return Judgement(
        passed=False,
        rule="non_finite",
        reason=f"{int(wrong.sum())} elements differ in {' and '.join(names)}",
        worst_index=index,
        worst_got=text_at(got, index),
        worst_expected=text_at(rounded if bool(torch.isfinite(expected[index])) else expected, index),
    )


def _kinds(tensor: torch.Tensor) -> torch.Tensor:
    """Return 0 for finite elements, 1 for NaN, 2 and 3 for the infinities."""
    kinds = torch.zeros(tensor.shape, dtype=torch.int8)
    if tensor.is_floating_point():
        for number, (_, test) in enumerate(_KINDS, start=1):
            kinds[test(tensor)] = number
    return kinds


def _at_the_edge(got: torch.Tensor, golden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    limits = torch.finfo(dtype)
    got, golden = got.to(torch.float64), golden.to(torch.float64)
    near = (golden.abs() / limits.max - 1.0).abs() <= 2.0 * limits.eps
    return near & ~torch.isnan(got) & (torch.signbit(got) == torch.signbit(golden))


def _notes(expected: torch.Tensor, rounded: torch.Tensor) -> tuple[str, ...]:
    other = int((_kinds(expected) != _kinds(rounded)).sum())
    if not other:
        return ()
    return (f"{other} elements overflow on the way in the same dtype on the CPU and not in float64: either is right",)

"""Bit for bit, and NaN and infinity where they belong."""

from __future__ import annotations

import pytest
import torch

from day0.analyzers.judging.exact import exact, exact_by_either
from day0.analyzers.judging.non_finite import non_finite

NAN, INF = float("nan"), float("inf")


def test_exact() -> None:
    x = torch.tensor([1, 2, 3])
    assert exact(x, x).passed
    found = exact(x, x + 1)
    assert not found.passed
    assert (found.needed, found.limit, found.worst_index) == (1.0, 0.0, (0,))
    nan = torch.tensor([NAN, 1.0])
    assert exact(nan, nan).passed
    assert not exact(nan, torch.tensor([1.0, 1.0])).passed


def test_the_sign_of_zero_counts_where_it_is_asked_for() -> None:
    zero, minus = torch.tensor([0.0]), torch.tensor([-0.0])
    assert exact(zero, minus).passed
    assert not exact(zero, minus, zero_sign=True).passed
    assert exact(minus, minus, zero_sign=True).passed
    nan = torch.tensor([NAN])
    assert exact(nan, -nan, zero_sign=True).passed


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.bfloat16])
def test_narrow_floats_are_compared(dtype: torch.dtype) -> None:
    one, other = torch.tensor([1.0, 2.0]).to(dtype), torch.tensor([2.0, 1.0]).to(dtype)
    assert exact(one, one.clone()).passed
    assert not exact(one, other).passed


def test_large_integers_are_not_taken_for_equal() -> None:
    x = torch.tensor([2**24 + 1, 2**62 + 1])
    assert not exact(x, torch.tensor([2**24, 2**62 + 1])).passed
    assert not exact(x, torch.tensor([2**24 + 1, 2**62])).passed


def test_a_decision_may_be_that_of_the_dtype_or_that_of_float64() -> None:
    same, golden = torch.tensor([1, 2, 3]), torch.tensor([1, 9, 3])
    for got, passed in (([1, 2, 3], True), ([1, 9, 3], True), ([1, 5, 3], False)):
        assert exact_by_either(torch.tensor(got), same, golden).passed is passed


def test_nan_fails_at_every_rule() -> None:
    x = torch.ones(4)
    wrong = x.clone()
    wrong[0] = NAN
    assert not non_finite(wrong, x).passed
    assert not exact(wrong, x).passed
    everything = torch.full_like(x, NAN)
    assert not non_finite(everything, x).passed
    assert non_finite(everything, everything).passed


def test_the_sign_of_infinity_counts() -> None:
    got = torch.tensor([1.0, INF])
    assert not non_finite(got, -got).passed


def test_overflow_is_what_the_dtype_gives() -> None:
    golden = torch.tensor([7e4, 1.0, -1e9], dtype=torch.float64)
    expected = golden.to(torch.float16)
    assert non_finite(expected, expected, golden=golden).passed
    saturated = torch.tensor([65504.0, 1.0, -65504.0]).to(torch.float16)
    found = non_finite(saturated, expected, golden=golden)
    assert not found.passed
    assert found.reason == "2 elements differ in +inf and -inf"


def test_at_the_edge_of_the_range_both_are_right() -> None:
    golden = torch.tensor([65519.0, 65521.0, -65530.0], dtype=torch.float64)
    for got in ([65504.0, 65504.0, -65504.0], [INF, INF, -INF]):
        assert non_finite(torch.tensor(got).to(torch.float16), golden.to(torch.float16), golden=golden).passed
    assert not non_finite(
        torch.tensor([-INF, INF, -INF]).to(torch.float16), golden.to(torch.float16), golden=golden
    ).passed


def test_a_reference_that_overflows_on_the_way_condemns_nobody() -> None:
    golden = torch.tensor([300.0, 2.0], dtype=torch.float64)
    overflowed = torch.tensor([INF, 2.0]).to(torch.float16)
    found = non_finite(golden.to(torch.float16), overflowed, golden=golden)
    assert found.passed
    assert "overflow on the way" in found.notes[0]
    assert non_finite(overflowed, overflowed, golden=golden).passed
    wrong = torch.tensor([NAN, 2.0]).to(torch.float16)
    assert not non_finite(wrong, overflowed, golden=golden).passed


def test_a_device_that_overflows_alone_fails() -> None:
    golden = torch.tensor([300.0, 2.0], dtype=torch.float64)
    right = golden.to(torch.float16)
    assert not non_finite(torch.tensor([INF, 2.0]).to(torch.float16), right, golden=golden).passed


def test_the_order_of_infinite_terms_decides_between_nan_and_infinity() -> None:
    expected, got = torch.tensor([NAN, 1.0, INF]), torch.tensor([-INF, 1.0, NAN])
    assert not non_finite(got, expected).passed
    found = non_finite(got, expected, any_kind=True)
    assert found.passed
    assert found.notes[0].startswith("2 elements are NaN in the place of infinity")
    for wrong in (torch.tensor([0.0, 1.0, INF]), torch.tensor([NAN, INF, INF])):
        assert not non_finite(wrong, expected, any_kind=True).passed

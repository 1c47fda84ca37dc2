"""What rules are told by one look is what they would find by the long way."""

from __future__ import annotations

import pytest
import torch

from day0.analyzers.judging.exact import differs, exact
from day0.analyzers.judging.non_finite import non_finite
from day0.analyzers.judging.words import all_finite, same_bits

NAN, INF = float("nan"), float("inf")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", [(NAN,), (INF,), (-INF,), (INF, -INF), (NAN, INF)])
def test_all_finite_sees_each_number_that_is_not(dtype: torch.dtype, wrong: tuple[float, ...]) -> None:
    right = torch.linspace(-1.0, 1.0, 130, dtype=torch.float64).to(dtype)
    assert all_finite(right)
    for place in (0, 64, 128):
        spoiled = right.clone()
        spoiled[place : place + len(wrong)] = torch.tensor(wrong, dtype=dtype)
        assert not all_finite(spoiled)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_that_overflows_says_nothing(dtype: torch.dtype) -> None:
    assert all_finite(torch.full((64,), torch.finfo(dtype).max, dtype=dtype))
    assert all_finite(torch.empty(0, dtype=dtype))
    assert all_finite(torch.tensor([1, 2]))


def test_bits_are_the_same_only_where_all_are() -> None:
    one = torch.tensor([[0.0, NAN, 1.0], [2.0, -3.0, INF]])
    assert same_bits(one, one.clone())
    assert same_bits(one.t(), one.clone().t())
    assert same_bits(one, one.t().contiguous().t())  # other strides
    for place, value in ((0, -0.0), (2, 1.0000001)):
        other = one.clone()
        other[0, place] = value
        assert not same_bits(one, other)
    assert not same_bits(one, one.double())
    assert not same_bits(one, one.reshape(3, 2))
    assert not same_bits(one.to(torch.complex64), one.to(torch.complex64))  # has to go the long way
    negated = torch._neg_view(one)
    assert not same_bits(negated, one)
    assert not same_bits(one, negated)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn, torch.int8, torch.bool, torch.complex64])
def test_the_same_bits_differ_nowhere(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, -0.0, NAN, 1.0, 3.0]) if dtype.is_floating_point else torch.tensor([0, 1, 1, 0, 1])
    one, other = values.to(dtype), values.to(dtype)
    assert not bool(differs(one, other, zero_sign=True).any())
    found = exact(one, other, zero_sign=True)
    assert (found.passed, found.rule, found.error, found.limit) == (True, "exact", 0.0, 0.0)


def test_zero_for_minus_zero_is_still_told_by_its_sign() -> None:
    zero = torch.zeros(3)
    assert not exact(zero, -zero, zero_sign=True).passed
    assert exact(zero, -zero).passed


def test_which_kind_may_stand_is_asked_only_if_something_is_not_finite() -> None:
    asked: list[int] = []

    def either() -> bool:
        asked.append(1)
        return True

    assert non_finite(torch.ones(3), torch.zeros(3), any_kind=either).passed
    assert not asked
    assert non_finite(torch.tensor([NAN, 1.0]), torch.tensor([INF, 1.0]), any_kind=either).passed
    assert asked
    assert not non_finite(torch.tensor([NAN, 1.0]), torch.tensor([INF, 1.0]), any_kind=lambda: False).passed

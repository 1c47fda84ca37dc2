"""The judge, tested with planted faults: a rule that misses one of them is broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from day0.analyzers.judging.exact import exact
from day0.analyzers.judging.floats import floats
from day0.analyzers.judging.index_sets import index_sets
from day0.analyzers.judging.layout import layout
from day0.analyzers.judging.non_finite import non_finite
from day0.reference_ops._spec import DEFAULT_TOLERANCE


def _case(dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return result, golden and same-dtype reference of a matrix product."""
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(64, 96, generator=generator).to(dtype)
    right = torch.randn(96, 80, generator=generator).to(dtype)
    golden = left.double() @ right.double()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return (left.to(wide) @ right.to(wide)).to(dtype), golden, left @ right


def _one_wrong(x: torch.Tensor) -> torch.Tensor:
    x[3, 5] = x[3, 5] + 1.0
    return x


FAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one wrong element": _one_wrong,
    "scaled by 1.5": lambda x: x * 1.5,
    "all zero": torch.zeros_like,
    "rows swapped": lambda x: x[torch.tensor([1, 0, *range(2, 64)])],
    "columns shifted": lambda x: x.roll(1, dims=1),
    "transposed block": lambda x: torch.cat((x[:, :64].t(), x[:, 64:]), dim=1),
    "fewer mantissa bits": lambda x: x.to(torch.float8_e4m3fn).to(x.dtype),
    "sign flipped": lambda x: -x,
    "off by one percent": lambda x: x * 1.02,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_planted_faults_fail(fault: str, dtype: torch.dtype) -> None:
    got, golden, reference = _case(dtype)
    wrong = FAULTS[fault](got.clone()).contiguous()
    assert not floats(wrong, golden, reference, DEFAULT_TOLERANCE).passed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_right_results_pass(dtype: torch.dtype) -> None:
    got, golden, reference = _case(dtype)
    assert floats(got, golden, reference, DEFAULT_TOLERANCE).passed
    assert floats(golden.to(dtype), golden, reference, DEFAULT_TOLERANCE).passed, "better than the reference"


def test_another_order_of_the_sum_passes() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 512, generator=generator)
    reordered = x.reshape(8, 16, 32).sum(-1).sum(-1)
    assert floats(reordered, x.double().sum(-1), x.sum(-1), DEFAULT_TOLERANCE).passed


def test_a_lucky_yardstick_does_not_condemn_another_order_of_a_long_sum() -> None:
    golden = torch.linspace(1.0, 2.0, 64, dtype=torch.float64)
    reference = golden.float()
    off = (golden * (1 + 2.5e-7)).float()
    assert floats(off, golden, reference, DEFAULT_TOLERANCE, terms=96).passed
    assert not floats(off, golden, reference, DEFAULT_TOLERANCE).passed
    assert not floats((golden * (1 + 1e-5)).float(), golden, reference, DEFAULT_TOLERANCE, terms=96).passed


def test_nan_fails_at_every_rule() -> None:
    got, _golden, reference = _case()
    got[0, 0] = float("nan")
    assert not non_finite(got, reference).passed
    assert not exact(got, reference).passed
    everything = torch.full_like(got, float("nan"))
    assert not non_finite(everything, reference).passed
    assert non_finite(everything, everything).passed


def test_the_sign_of_infinity_counts() -> None:
    got = torch.tensor([1.0, float("inf")])
    assert not non_finite(got, -got).passed


def test_an_all_zero_golden_needs_an_all_zero_result() -> None:
    zero = torch.zeros(4)
    assert floats(zero, zero.double(), zero, DEFAULT_TOLERANCE).passed
    assert not floats(zero + 1e-3, zero.double(), zero, DEFAULT_TOLERANCE).passed


def test_one_ulp_passes_and_two_do_not_where_the_reference_is_exact() -> None:
    golden = torch.linspace(1.0, 1.9, 50).to(torch.bfloat16)
    step = torch.finfo(torch.bfloat16).eps
    assert floats(golden + step, golden.double(), golden, DEFAULT_TOLERANCE).passed
    assert not floats(golden + 3 * step, golden.double(), golden, DEFAULT_TOLERANCE).passed


def test_a_failure_names_the_worst_index_and_both_values() -> None:
    got, golden, reference = _case(torch.float32)
    found = floats(_one_wrong(got.clone()), golden, reference, DEFAULT_TOLERANCE)
    assert found.worst_index == (3, 5)
    assert float(found.worst_got) == pytest.approx(float(golden[3, 5]) + 1.0, rel=1e-4)
    assert float(found.worst_expected) == pytest.approx(float(golden[3, 5]), rel=1e-6)


@pytest.mark.parametrize(
    ("got", "reason"),
    [
        (torch.zeros(2, 3), "shape"),
        (torch.zeros(3, 2, dtype=torch.float64), "dtype"),
        (torch.zeros(2, 3).t(), "strides"),
    ],
)
def test_layout(got: torch.Tensor, reason: str) -> None:
    found = layout(got, torch.zeros(3, 2), "cpu")
    assert not found.passed
    assert found.reason.startswith(reason)
    assert layout(torch.zeros(3, 2), torch.zeros(3, 2), "cpu").passed
    assert not layout(torch.zeros(3, 2), torch.zeros(3, 2), "sim").passed


def test_strides_of_dimensions_with_one_element_do_not_matter() -> None:
    odd = torch.zeros(8).as_strided((1, 2), (999, 1))
    assert layout(odd, torch.zeros(1, 2), "cpu").passed


SCORES = torch.tensor([[5.0, 3.0, 3.0, 1.0, float("-inf")]])


@pytest.mark.parametrize(
    ("got", "ordered", "passes"),
    [
        ([0, 1], False, True),
        ([1, 0], False, True),
        ([1, 0], True, False),
        ([0, 2], True, True),  # a tie at the cut may fall either way
        ([0, 3], False, False),
        ([0, 0], False, False),  # twice the same
        ([0, 7], False, False),  # out of range
        ([0, -1], False, False),  # one too few
        ([0, -2], False, False),
    ],
)
def test_index_sets(got: list[int], ordered: bool, passes: bool) -> None:
    found = index_sets(torch.tensor([got]), SCORES, torch.tensor([[0, 1]]), margin=0.0, ordered=ordered)
    assert found.passed is passes


def test_closed_places_are_not_chosen() -> None:
    expected = torch.tensor([[0, -1]])
    assert index_sets(torch.tensor([[0, -1]]), SCORES, expected, margin=0.0).passed
    assert not index_sets(torch.tensor([[0, 4]]), SCORES, expected, margin=0.0).passed


def test_exact() -> None:
    x = torch.tensor([1, 2, 3])
    assert exact(x, x).passed
    assert not exact(x, x + 1).passed
    nan = torch.tensor([float("nan"), 1.0])
    assert exact(nan, nan).passed


def test_eight_bit_floats_are_judged_by_their_own_unit() -> None:
    golden = torch.tensor([1.0, 2.0, -448.0, 0.0], dtype=torch.float64)
    got = golden.to(torch.float8_e4m3fn)
    assert floats(got, golden, got, DEFAULT_TOLERANCE).passed
    # One code further is one unit and may be rounding, four are not.
    for steps, passed in ((1, True), (4, False)):
        moved = (got.view(torch.uint8) + torch.tensor([steps, 0, 0, 0], dtype=torch.uint8)).view(torch.float8_e4m3fn)
        assert floats(moved, golden, got, DEFAULT_TOLERANCE).passed is passed

"""Floats against a golden: planted faults fail, what rounding does passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from day0.analyzers.judging.floats import floats
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


def test_eight_bit_floats_are_judged_by_their_own_unit() -> None:
    golden = torch.tensor([1.0, 2.0, -448.0, 0.0], dtype=torch.float64)
    got = golden.to(torch.float8_e4m3fn)
    assert floats(got, golden, got, DEFAULT_TOLERANCE).passed
    # One code further is one unit and may be rounding, four are not.
    for steps, passed in ((1, True), (4, False)):
        moved = (got.view(torch.uint8) + torch.tensor([steps, 0, 0, 0], dtype=torch.uint8)).view(torch.float8_e4m3fn)
        assert floats(moved, golden, got, DEFAULT_TOLERANCE).passed is passed


# --- what a norm of the whole hides


def _heads(dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return result, golden and reference [rows, heads, D] of something rounded once; heads are of very different size."""
    generator = torch.Generator().manual_seed(3)
    size = 10.0 ** torch.arange(-2, 3)[None, :, None]
    golden = torch.randn(40, 5, 32, generator=generator, dtype=torch.float64) * size
    return golden.to(dtype), golden, golden.to(dtype)


@pytest.mark.parametrize("head", range(5))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_one_wrong_head_in_one_row_fails_whatever_its_size(head: int, dtype: torch.dtype) -> None:
    got, golden, reference = _heads(dtype)
    got = got.clone()
    got[7, head] = (got[7, head].float() * 1.03).to(dtype)
    assert not floats(got, golden, reference, DEFAULT_TOLERANCE).passed


def test_a_line_that_fails_is_named() -> None:
    got, golden, reference = _heads()
    got = got.clone()
    got[7, 0] = (got[7, 0].float() * 1.02).to(torch.bfloat16)
    found = floats(got, golden, reference, DEFAULT_TOLERANCE)
    assert (found.passed, found.rule) == (False, "lines")
    assert found.reason.startswith("line [7, 0, :] has a relative error of 0.0")
    assert found.needed == found.error
    assert found.error is not None and found.limit is not None and found.error > found.limit


def test_one_wrong_small_element_of_a_pointwise_result_fails() -> None:
    golden = torch.exp(-torch.linspace(0.0, 30.0, 64, dtype=torch.float64))
    got = golden.float()
    reference = golden.float()
    assert floats(got, golden, reference, DEFAULT_TOLERANCE, pointwise=True).passed
    got[60] *= 1.01
    assert not floats(got, golden, reference, DEFAULT_TOLERANCE, pointwise=True).passed


# --- sums


def _product(terms: int, seed: int = 0, wide: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return two factors in float32, with exponents spread over some decades, and the partial sums of their product."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (
        torch.randn(*shape, generator=generator) * 10.0 ** ((torch.rand(*shape, generator=generator) - 0.5) * wide)
        for shape in ((16, terms), (terms, 24))
    )
    squares = left.double().square() @ right.double().square()
    return left, right, ((left.double() @ right.double()).square() + squares).sqrt()


@pytest.mark.parametrize("terms", [96, 1024, 4096])
@pytest.mark.parametrize("wide", [0.0, 6.0])
def test_sums_in_any_order_pass(terms: int, wide: float) -> None:
    for seed in range(3):
        left, right, partial = _product(terms, seed, wide)
        golden = left.double() @ right.double()
        order = torch.randperm(terms, generator=torch.Generator().manual_seed(seed))
        got = torch.zeros(16, 24)
        for part in order.split(32):
            got += left[:, part] @ right[part]
        found = floats(got, golden, left @ right, DEFAULT_TOLERANCE, terms=terms, partial=partial)
        assert found.passed, found


def test_one_accumulator_from_the_first_to_the_last_passes() -> None:
    left, right, partial = _product(2048)
    got = torch.zeros(16, 24)
    for place in range(2048):
        got += left[:, place : place + 1] * right[place]
    golden = left.double() @ right.double()
    assert floats(got, golden, left @ right, DEFAULT_TOLERANCE, terms=2048, partial=partial).passed


def _fewer_bits(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Keep so many bits of the mantissa of float32, rounded to the nearest."""
    step = 1 << (23 - bits)
    return ((x.view(torch.int32) + step // 2) & -step).view(torch.float32)


@pytest.mark.parametrize("terms", [32, 96, 1024, 4096])
def test_tensor_float_32_fails(terms: int) -> None:
    left, right, partial = _product(terms)
    golden = left.double() @ right.double()
    got = (_fewer_bits(left, 10).double() @ _fewer_bits(right, 10).double()).float()
    assert not floats(got, golden, left @ right, DEFAULT_TOLERANCE, terms=terms, partial=partial).passed


def test_a_sum_that_cancels_to_nothing_is_judged_by_what_it_summed() -> None:
    golden = torch.zeros(8, 8, dtype=torch.float64)
    partial = torch.ones(8, 8, dtype=torch.float64)
    little, much = torch.full((8, 8), 1e-7), torch.full((8, 8), 1e-4)
    assert floats(little, golden, golden.float(), DEFAULT_TOLERANCE, terms=64, partial=partial).passed
    assert not floats(much, golden, golden.float(), DEFAULT_TOLERANCE, terms=64, partial=partial).passed
    assert not floats(little, golden, golden.float(), DEFAULT_TOLERANCE, terms=64).passed


def test_a_bad_reference_in_a_half_type_excuses_nobody() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(32, 2048, generator=generator).to(torch.float16)
    golden = x.double().sum(-1)
    bad = torch.zeros(32, dtype=torch.float16)
    for place in range(2048):
        bad = bad + x[:, place]
    rounded = x.float().sum(-1).to(torch.float16)
    assert floats(bad, golden, bad, DEFAULT_TOLERANCE, terms=2048).passed, "without the better yardstick"
    assert not floats(bad, golden, bad, DEFAULT_TOLERANCE, terms=2048, rounded=rounded).passed
    assert floats(rounded, golden, bad, DEFAULT_TOLERANCE, terms=2048, rounded=rounded).passed


# --- what the inputs do to the result


def test_bad_condition_is_measured_and_not_assumed() -> None:
    x = torch.linspace(100.0, 101.0, 64)
    golden = (x.double() * 1e4).sin()
    turned = ((x.double() * (1 + 5e-8)) * 1e4).sin().float()
    reference = golden.float()
    moved = ((x.double() * (1 + torch.finfo(torch.float32).eps)) * 1e4).sin() - golden
    assert not floats(turned, golden, reference, DEFAULT_TOLERANCE, pointwise=True).passed
    found = floats(turned, golden, reference, DEFAULT_TOLERANCE, pointwise=True, displaced=lambda: moved.abs())
    assert not found.passed, "beyond the ceiling nothing is excused"
    mild = ((x.double() * (1 + 5e-8)) * 10).sin().float()
    moved = ((x.double() * (1 + torch.finfo(torch.float32).eps)) * 10).sin() - (x.double() * 10).sin()
    found = floats(
        mild, (x.double() * 10).sin(), (x.double() * 10).sin().float(), DEFAULT_TOLERANCE, displaced=lambda: moved.abs()
    )
    assert found.passed
    assert "badly conditioned" in found.notes[0]


# --- running sums


def _running(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Sum up as scans on graphics processors do: a tree of sums, each rounded to the dtype."""
    total, step = x.clone(), 1
    while step < x.shape[-1]:
        total = total.clone().index_put_(
            (torch.arange(x.shape[0])[:, None], torch.arange(step, x.shape[-1])),
            (total[:, step:].float() + total[:, :-step].float()).to(dtype),
        )
        step *= 2
    return total


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [24, 300, 2048])
def test_running_sums_in_a_tree_of_the_dtype_pass(dtype: torch.dtype, length: int) -> None:
    for seed in range(3):
        x = torch.randn(16, length, generator=torch.Generator().manual_seed(seed)).to(dtype)
        golden = x.double().cumsum(-1)
        partial = torch.maximum(golden.abs().cummax(-1).values, x.double().square().cumsum(-1).sqrt())
        levels = 1 + (length - 1).bit_length()
        found = floats(
            _running(x, dtype),
            golden,
            golden.to(dtype),
            DEFAULT_TOLERANCE,
            terms=length,
            partial=partial,
            levels=levels,
        )
        assert found.passed, found


def test_a_running_sum_that_stands_still_fails() -> None:
    x = torch.ones(4, 1000, dtype=torch.bfloat16)
    golden = x.double().cumsum(-1)
    stuck = golden.clamp(max=256.0).to(torch.bfloat16)
    found = floats(stuck, golden, golden.to(torch.bfloat16), DEFAULT_TOLERANCE, terms=1000, partial=golden, levels=11)
    assert not found.passed


def test_numbers_too_small_for_normal_ones_may_become_zero() -> None:
    golden = torch.tensor([1.0, 1e-39, 2e-38], dtype=torch.float64)
    flushed = torch.tensor([1.0, 0.0, 2e-38])
    assert floats(flushed, golden, golden.float(), DEFAULT_TOLERANCE, pointwise=True).passed
    lost = torch.tensor([1.0, 0.0, 0.0])
    assert not floats(lost, golden, golden.float(), DEFAULT_TOLERANCE, pointwise=True).passed


def test_complex_numbers_are_judged_by_both_parts() -> None:
    generator = torch.Generator().manual_seed(0)
    golden = torch.randn(8, 16, dtype=torch.complex128, generator=generator)
    got = golden.to(torch.complex64)
    assert floats(got, golden, got, DEFAULT_TOLERANCE).passed
    assert not floats(got.conj().resolve_conj(), golden, got, DEFAULT_TOLERANCE).passed


def test_swapping_expected_and_actual_is_noticed() -> None:
    _got, golden, reference = _case(torch.float32)
    half = (golden * 0.5).float()
    one = floats(half, golden, reference, DEFAULT_TOLERANCE)
    other = floats(golden.float(), half.double(), reference, DEFAULT_TOLERANCE)
    assert one.error == pytest.approx(0.5, rel=1e-3)
    assert other.error == pytest.approx(1.0, rel=1e-3)

"""Shape, dtype, strides, device, and who shares memory with whom."""

from __future__ import annotations

import pytest
import torch

from day0.analyzers.judging.aliasing import aliasing, shared_memory
from day0.analyzers.judging.layout import layout


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


def test_strides_are_free_where_the_backend_chooses_them() -> None:
    assert layout(torch.zeros(2, 3).t(), torch.zeros(3, 2), "cpu", strides=False).passed


def test_a_view_keeps_its_mark_of_conjugation() -> None:
    x = torch.zeros(3, dtype=torch.complex64)
    found = layout(x, x.conj(), "cpu", is_view=True)
    assert not found.passed
    assert found.reason == "conjugate mark is False, expected True"
    assert layout(x, x.conj(), "cpu").passed, "what is no view may have computed it"


X = torch.zeros(4, 6)


def test_a_view_that_was_copied_fails() -> None:
    right = shared_memory([X.t()], [X])
    assert aliasing(right, right).passed
    found = aliasing(shared_memory([X.t().clone()], [X]), right)
    assert not found.passed
    assert found.reason.startswith("result 0 does not share the memory of argument 0")


def test_a_result_that_is_a_view_but_should_not_be_fails() -> None:
    found = aliasing(shared_memory([X], [X]), shared_memory([X.clone()], [X]))
    assert not found.passed
    assert found.reason.startswith("result 0 shares the memory of argument 0")


def test_an_operator_in_place_returns_its_argument() -> None:
    right = shared_memory([X, X], [X])
    assert not aliasing(shared_memory([X.clone(), X], [X]), right).passed


def test_results_that_share_memory_with_each_other() -> None:
    both = torch.zeros(8).split(4)
    apart = [one.clone() for one in both]
    assert not aliasing(shared_memory(both, []), shared_memory(apart, [])).passed


def test_tensors_without_elements_share_nothing() -> None:
    empty = torch.zeros(0, 3)
    assert shared_memory([empty], [empty]) == frozenset()

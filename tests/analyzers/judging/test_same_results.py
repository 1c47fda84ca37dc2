"""Repeated calls, batches, views and seeds."""

from __future__ import annotations

from dataclasses import replace

import torch

from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.same_results import draws_differ, may_vary, same_batch, same_bits, same_rule
from day0.reference_ops.load import load_operators

X = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))


def test_the_same_bits() -> None:
    nan = torch.tensor([float("nan"), 0.0])
    assert same_bits((X, nan), (X.clone(), nan.clone())).passed
    found = same_bits((X,), (X + 1e-6 * X,))
    assert not found.passed
    assert found.rule == "repeat"
    assert found.needed is not None and 0 < found.needed < 1e-5
    assert not same_bits((torch.zeros(1),), (-torch.zeros(1),)).passed
    assert not same_bits((X,), (X[:2],)).passed
    assert not same_bits((X,), (X.double(),), exempt="says who").passed


def test_operators_that_add_in_no_order_are_exempt_and_it_is_said() -> None:
    why = may_vary("aten::index_add_", None)
    found = same_bits((X,), (X * (1 + 1e-6),), exempt=why)
    assert found.passed
    assert "additions to one place in memory in no order" in found.notes[0]
    assert not may_vary("aten::mm", None)
    contract = load_operators()["day0::rms_norm"]
    assert not may_vary("day0::rms_norm", contract)
    assert may_vary("day0::rms_norm", replace(contract, deterministic=False))


def test_a_row_within_a_batch_may_be_summed_otherwise_and_not_be_another() -> None:
    near, far = X * (1 + 1e-7), X.roll(1, dims=0)
    assert not same_batch((X,), (X.clone(),), limit=1e-6).notes
    found = same_batch((X,), (near,), limit=1e-6)
    assert found.passed and "sums in another order" in found.notes[0]
    assert not same_batch((X,), (near,), limit=1e-6, strict=True).passed
    assert not same_batch((X,), (far,), limit=1e-6).passed
    nan = torch.full_like(X, float("nan"))
    assert not same_batch((X,), (nan,), limit=1e-6).passed


def test_a_view_is_judged_by_the_same_rule() -> None:
    right = Judgement(passed=True, rule="relative_l2")
    wrong = Judgement(passed=False, rule="relative_l2", reason="too far")
    found = same_rule(right, wrong, "transposed")
    assert not found.passed
    assert found.reason == "transposed: too far"
    assert found.notes == ("right for contiguous arguments",)
    assert same_rule(right, right, "transposed").passed
    assert same_rule(wrong, right, "transposed") is wrong


def test_a_generator_that_stands_still_is_noticed() -> None:
    mask = torch.rand(64, generator=torch.Generator().manual_seed(0)) < 0.5
    assert not draws_differ((mask,), (mask.clone(),)).passed
    assert draws_differ((mask,), (~mask,)).passed
    few = mask[:8]
    assert draws_differ((few,), (few.clone(),)).passed, "that happens by itself"
    assert not draws_differ((X[:1, :8],), (X[:1, :8].clone(),), bits=20.0).passed

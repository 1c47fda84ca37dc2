"""Which rule judges what, end to end: reference, golden, results, notes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.copies import copy_to
from day0.analyzers.judging.compare import compare_results
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.reference import references
from day0.analyzers.judging.results import results
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import describe, resolve
from day0.reference_ops.torch_ops import register_operators

CPU = torch.device("cpu")
NAN, INF = float("nan"), float("inf")


def judge(op: str, *args: Any, change: Callable[[Any], Any] = lambda out: out, **kwargs: Any) -> Judgement:
    """Run an operator on the CPU as if that were the device, change what it returned, judge it."""
    register_operators()
    inputs = CaseInputs(args=args, kwargs=kwargs)
    signature = describe(op, args, kwargs)
    contract = load_operators().get(op.partition(".")[0])
    reference = references(signature, inputs, contract)
    moved = copy_to(inputs, CPU)
    run = contract.reference if contract and op.startswith("day0::") else resolve(op)
    got = tuple(results(resolve(op), change(run(*moved.args, **moved.kwargs)), moved))
    return compare_results(signature, inputs, got, reference, contract, CPU, moved=moved)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


X = randn(6, 40)
ROW = torch.tensor([[0.5, 1.5, -2.5]])
INDEX = torch.tensor([0, 0, 0, 1])
HALVES = (torch.float16, torch.bfloat16)

RIGHT: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("aten::silu", (X,), {}),
    ("aten::gelu", (10.0 * X,), {}),
    ("aten::mm", (X, X.t()), {}),
    ("aten::mean.dim", (X, [1]), {}),
    ("aten::cumsum", (X, 1), {}),
    ("aten::cumsum", (X.to(torch.bfloat16), 1), {}),
    ("aten::cumprod", (X, 1), {}),
    ("aten::_softmax", (100.0 * X, -1, False), {}),
    ("aten::_softmax", (torch.full((2, 4), -INF), -1, False), {}),
    ("aten::var.correction", (X, [1]), {}),
    ("aten::topk", (X, 3), {}),
    ("aten::argsort.stable", (X,), {"stable": True}),
    ("aten::t", (X,), {}),
    ("aten::add_.Tensor", (X, X), {}),
    ("aten::mul.Tensor", (X.to(torch.complex64), X.to(torch.complex64)), {}),
    ("aten::_to_copy", (X,), {"dtype": torch.int32}),
    ("aten::_to_copy", (1e12 * X,), {"dtype": torch.int32}),
    ("aten::bitwise_left_shift.Tensor", (INDEX, torch.tensor([1, 70, -1, 3])), {}),
    ("aten::index_put_", (X, [INDEX], X[:4].clone()), {}),
    ("aten::index_put_", (X, [INDEX], X[:4].clone(), True), {}),
    ("aten::index_put", (X.to(torch.float16), [INDEX], X[:4].to(torch.float16), True), {}),
    ("aten::scatter.src", (X, 1, torch.zeros(6, 3, dtype=torch.int64), X), {}),
    ("aten::index_add", (X, 0, INDEX, X[:4]), {}),
    ("aten::scatter_add", (X, 1, torch.zeros(6, 40, dtype=torch.int64), X), {}),
    ("aten::native_dropout", (X, 0.5, True), {}),
    ("aten::native_dropout", (X, 0.5, False), {}),
    ("aten::scatter.reduce", (X, 1, torch.zeros(6, 40, dtype=torch.int64), X), {"reduce": "add"}),
    ("aten::scatter_reduce.two", (X, 1, torch.zeros(6, 40, dtype=torch.int64), X.clone(), "sum"), {}),
    ("aten::index_put", (X, [X > 0], torch.tensor(1.0), True), {}),
    ("aten::index_put", (X, [None, torch.tensor([1])], torch.ones(6, 1)), {}),
    ("aten::index_add", (X, 1, torch.tensor([0, 0]), X[:, :2].clone()), {"alpha": 2.0}),
    ("aten::sort", (torch.tensor(3.0),), {}),
    ("aten::sort", (torch.zeros(2, 0),), {}),
    ("aten::topk", (torch.tensor(3.0), 1), {}),
    ("aten::argmax", (torch.tensor(3.0), 0), {}),
    ("aten::max.dim", (torch.tensor(3.0), 0), {}),
    ("aten::max", (X,), {}),
    ("aten::max.other", (X, X), {}),
    ("aten::median", (INDEX,), {}),
    ("aten::cumsum", (torch.tensor(2.0), 0), {}),
    ("aten::mm", (torch.zeros(2, 0), torch.zeros(0, 2)), {}),
    ("aten::mm", (torch.complex(X, X), torch.complex(X, X).t()), {}),
    ("aten::addmm", (X[:, :6].clone(), X, X.t()), {"beta": 0.5, "alpha": 2}),
    ("aten::_conj", (torch.complex(X, X),), {}),
    ("aten::split.Tensor", (X, 2), {}),
    ("aten::_unique2", (INDEX, True, True, True), {}),
    ("aten::empty.memory_format", ([2, 3],), {}),
    ("aten::nonzero", (INDEX,), {}),
    ("aten::scaled_dot_product_attention", (X[None, None], X[None, None], X[None, None]), {}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), RIGHT)
def test_the_cpu_itself_passes(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    found = judge(op, *args, **kwargs)
    assert found.passed, found


def _first(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    return lambda out: (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)


def _spoil(value: float) -> Callable[[Any], Any]:
    def change(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x.view(-1)[3] = value
        return x

    return _first(change)


WRONG: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], Callable[[Any], Any] | None, str]] = {
    "a view that was copied": ("aten::t", (X,), {}, lambda x: x.t().clone().t(), "aliasing"),
    "a copy that is a view": ("aten::clone", (X,), {}, None, "aliasing"),
    "in place, but a copy returned": ("aten::add_.Tensor", (X, X), {}, lambda x: x.clone(), "aliasing"),
    "sign of zero lost in a copy": ("aten::clone", (torch.zeros(8) * -1.0,), {}, lambda x: x.abs(), "exact"),
    "NaN in a sum": ("aten::mean.dim", (X, [1]), {}, _spoil(NAN), "non_finite"),
    "attention without values": (
        "aten::scaled_dot_product_attention",
        (X[None, None], X[None, None], X[None, None]),
        {},
        lambda x: x * 1.01,
        "relative_l2",
    ),
    "one cast wrong beside one that is open": (
        "aten::_to_copy",
        (torch.tensor([1e12, 1.5, 2.5, -3.5]),),
        {"dtype": torch.int32},
        lambda x: x + torch.tensor([0, 0, 1, 0], dtype=torch.int32),
        "exact",
    ),
    "a place written once is wrong beside one written twice": (
        "aten::index_put",
        (X, [INDEX], X[:4]),
        {},
        lambda x: x + torch.eye(6, 40)[[1, 0, 2, 3, 4, 5]],
        "exact",
    ),
    "an accumulated sum that lost a value": (
        "aten::index_put",
        (X, [INDEX], X[:4], True),
        {},
        lambda x: x - torch.nn.functional.pad(X[:1], (0, 0, 0, 5)),
        "relative_l2",
    ),
    "dropout without its scale": (
        "aten::native_dropout",
        (X, 0.5, True),
        {},
        lambda out: (out[0] * 0.5, out[1]),
        "relative_l2",
    ),
    "dropout outside training": (
        "aten::native_dropout",
        (X, 0.5, False),
        {},
        lambda out: (out[0] * 2.0, out[1]),
        "relative_l2",
    ),
    "softmax of closed rows gives 0 where NaN is declared": (
        "aten::_softmax",
        (torch.full((2, 4), -INF), -1, False),
        {},
        lambda x: torch.zeros_like(x),
        "non_finite",
    ),
    "argsort out of order": (
        "aten::argsort",
        (X,),
        {},
        lambda x: x.roll(1, dims=1),
        "index_set",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_results_fail_by_the_rule_that_is_meant(fault: str) -> None:
    op, args, kwargs, change, rule = WRONG[fault]
    if change is None:
        register_operators()
        inputs = CaseInputs(args=args, kwargs=kwargs)
        signature = describe(op, args, kwargs)
        found = compare_results(signature, inputs, args, references(signature, inputs, None), None, CPU, moved=inputs)
    else:
        found = judge(op, *args, change=change, **kwargs)
    assert not found.passed
    assert found.rule == rule, found


def test_what_is_left_out_is_said_with_its_number() -> None:
    found = judge("aten::_to_copy", torch.tensor([1e12, NAN, 1.0]), dtype=torch.int32)
    assert found.passed
    assert len(found.notes) == 1
    assert found.notes[0].startswith("2 elements left out: a cast to int32 of NaN or of a number out of its range")


def test_float8_may_saturate_and_nothing_else() -> None:
    source = torch.tensor([1.0, 1e4, -1e4, 448.0])
    saturated = torch.tensor([1.0, 448.0, -448.0, 448.0]).to(torch.float8_e4m3fn)
    assert judge("aten::_to_copy", source, dtype=torch.float8_e4m3fn, change=lambda _: saturated).passed
    wrong = torch.tensor([2.0, 448.0, -448.0, 448.0]).to(torch.float8_e4m3fn)
    assert not judge("aten::_to_copy", source, dtype=torch.float8_e4m3fn, change=lambda _: wrong).passed


@pytest.mark.parametrize("dtype", HALVES)
def test_a_device_that_adds_up_in_a_half_type_fails_though_a_bad_reference_would_excuse_it(dtype: torch.dtype) -> None:
    x = torch.rand(8, 2048, generator=torch.Generator().manual_seed(0)).to(dtype)

    def narrow(_: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(8, dtype=dtype)
        for place in range(2048):
            total = total + x[:, place]
        return total

    assert not judge("aten::sum.dim_IntList", x, [1], change=narrow).passed
    assert judge("aten::sum.dim_IntList", x, [1], change=lambda _: x.float().sum(1).to(dtype)).passed


def test_accumulating_in_float32_is_better_than_the_cpu_and_passes() -> None:
    base, index = torch.ones(1, dtype=torch.float16), torch.zeros(40, dtype=torch.int64)
    values = torch.full((40,), 0.1, dtype=torch.float16)
    wide = (base.float() + values.float().sum()).to(torch.float16)
    assert judge("aten::index_put", base, [index], values, True, change=lambda _: wide).passed


def test_the_golden_says_what_it_is() -> None:
    def text(op: str, *args: Any, **kwargs: Any) -> str:
        contract = load_operators().get(op.partition(".")[0])
        return references(describe(op, args, kwargs), CaseInputs(args=args, kwargs=kwargs), contract).golden_text

    assert text("aten::silu", X) == "float64 on cpu"
    assert text("aten::add.Tensor", INDEX, INDEX) == "exact on cpu"
    weights = torch.ones(40)
    assert text("day0::rms_norm", X, weights, 1e-6) == "float64 on cpu"
    said = text("day0::fp8_block_quantise", X, 2, 8, False, 0.0)
    assert said == "float64 on cpu, narrowed to float32 inside"


def test_a_golden_that_float64_cannot_make_says_why() -> None:
    left = X[:4, :32].to(torch.float8_e4m3fn)
    right = X[:6, :32].reshape(6, 32)[:16].to(torch.float8_e4m3fn)
    right = randn(16, 32).to(torch.float8_e4m3fn).t()
    one = torch.ones(())
    args = (left, right, one, one)
    kwargs = {"out_dtype": torch.bfloat16}
    signature = describe("aten::_scaled_mm", args, kwargs)
    found = references(signature, CaseInputs(args=args, kwargs=kwargs), None)
    assert found.golden_text.startswith("same dtype on cpu, as float64 is refused: ")
    assert found.same_dtype is None


def test_of_several_results_the_first_failure_speaks_and_notes_are_kept() -> None:
    def change(out: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return out[0], out[1].roll(1, dims=1)

    found = judge("aten::topk", X, 3, change=change)
    assert not found.passed
    assert found.rule == "index_set"


def test_strides_are_open_where_indices_lie_in_different_orders_and_nowhere_else() -> None:
    rows = torch.zeros(1, 1, 1, dtype=torch.int64)
    packed = torch.arange(6).reshape(1, 2, 3)
    turned = torch.arange(6).reshape(1, 3, 2).transpose(1, 2)
    table = randn(1, 8, 4)

    def packs(indices: list[torch.Tensor], *, turns: bool = False) -> Judgement:
        lie = lambda out: out.transpose(1, 2).contiguous().transpose(1, 2) if turns else out.contiguous()
        return judge("aten::index.Tensor", table, indices, change=lie)

    assert packs([rows, turned]).passed
    assert packs([rows, turned], turns=True).passed
    assert packs([rows, packed], turns=True).rule == "layout"
    assert packs([torch.zeros_like(turned), turned]).rule == "layout"
    wrong = judge("aten::index.Tensor", table, [rows, turned], change=lambda out: out.flip(1))
    assert wrong.rule == "exact"

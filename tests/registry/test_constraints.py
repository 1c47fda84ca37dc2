from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from day0.devices.profile import load_profile
from day0.implementation import Accepted, Call, Constraints, DtypeName, Limit, Rejected, TensorLimit
from day0.kernels.limits import constraint_fault
from day0.records import ListValue, ScalarValue, Signature, TensorValue
from day0.registry.constraints import refuse_call
from day0.registry.resolve import judge
from day0.registry.schemas import call_of
from tests.registry.sampling import implementation

CPU = load_profile("cpu")
F32 = frozenset({"float32"})


def tensor(*shape: int, dtype: str = "float32", step: int = 1) -> TensorValue:
    stride = []
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return TensorValue(shape=shape, dtype=dtype, stride=tuple(reversed(stride)))


def scalar(value: Any, type_name: Any = None) -> ScalarValue:
    return ScalarValue(type=type_name or type(value).__name__, value=str(value))


TOPK = Signature(op="aten::topk", args=(tensor(3, 16), scalar(2)))
SPREAD = Signature(op="aten::topk", args=(tensor(3, 16, step=2), scalar(2)))
CAT = Signature(op="aten::cat", args=(ListValue(items=(tensor(2, 4), tensor(2, 5, dtype="bfloat16"))), scalar(1)))
INDEXER = Signature(
    op="day0::lightning_indexer", args=(tensor(1, 2, 4, 64), tensor(1, 9, 32), tensor(1, 2, 4), scalar(0))
)
DECODE = Signature(
    op="day0::mxfp4_decode",
    args=(tensor(4, 16, dtype="uint8"), tensor(4, 1, dtype="uint8"), scalar("bfloat16", "dtype")),
)


@pytest.mark.parametrize(
    ("limits", "call", "reason"),
    [
        (Constraints(dtypes=F32), CAT, "takes float32, not bfloat16 (tensors[1])"),
        (Constraints(dtypes=frozenset({"uint8"})), DECODE, "takes uint8, not bfloat16 (dtype)"),
        (Constraints(min_rank=3), TOPK, "takes at least 3 dimensions, not 2 (self)"),
        (Constraints(contiguous=False), TOPK, "self must not be contiguous, and has strides [16, 1]"),
        (Constraints(contiguous=True), TOPK, ""),
        (Constraints(contiguous=True), SPREAD, "self must be contiguous, and has strides [32, 2]"),
        (Constraints(arguments={"q": TensorLimit(dtypes=frozenset({"int8"}))}), INDEXER, "q must be int8, not float32"),
        (Constraints(arguments={0: TensorLimit(dtypes=frozenset({"int8"}))}), INDEXER, "q must be int8, not float32"),
        (Constraints(arguments={"w": TensorLimit(min_rank=4)}), INDEXER, "takes at least 4 dimensions, not 3 (w)"),
        (
            Constraints(arguments={"k": TensorLimit(sizes={-1: Limit(multiple_of=64)})}),
            INDEXER,
            "dimension -1 of k must be a multiple of 64, not 32",
        ),
        (
            Constraints(arguments={"q": TensorLimit(sizes={1: Limit(at_least=3, at_most=8)})}),
            INDEXER,
            "dimension 1 of q must be at least 3 and at most 8, not 2",
        ),
        (
            Constraints(arguments={"q": TensorLimit(sizes={-2: Limit(one_of=(8, 16))})}),
            INDEXER,
            "dimension -2 of q must be one of 8, 16, not 4",
        ),
        (
            Constraints(arguments={"w": TensorLimit(sizes={3: Limit(one_of=(1,))})}),
            INDEXER,
            "w must have a dimension 3, and has 3 dimensions",
        ),
        (
            Constraints(equal=((("q", -1), ("k", -1)),)),
            INDEXER,
            "dimension -1 of q and dimension -1 of k must be equal, not 64 and 32",
        ),
        (Constraints(equal=((("q", 1), ("w", 1)),)), INDEXER, ""),
        (
            Constraints(equal=((("tensors", 1), ("tensors", 0)),)),
            CAT,
            "dimension 1 of tensors[0] and dimension 1 of tensors[1] must be equal, not 4 and 5",
        ),
        (Constraints(arguments={"k": Limit(at_least=4)}), TOPK, "k must be at least 4, not 2"),
        (Constraints(arguments={"k": Limit(multiple_of=4)}), TOPK, "k must be a multiple of 4, not 2"),
        (Constraints(arguments={"largest": Limit(one_of=(False,))}), TOPK, "largest must be False, not True"),
        (Constraints(arguments={"largest": Limit(one_of=(True,))}), TOPK, ""),  # by default
        (Constraints(arguments={"dim": Limit(one_of=(-1,))}), TOPK, ""),
        (Constraints(arguments={"k": Limit(one_of=(True,))}), TOPK, "k must be True, not 2"),
        (Constraints(arguments={"order": Limit(one_of=("high_first",))}), DECODE, "not 'low_first'"),
        (
            Constraints(arguments={"dtype": Limit(one_of=("float32",))}),
            DECODE,
            "dtype must be 'float32', not 'bfloat16'",
        ),
        (
            Constraints(
                any_of=(
                    Constraints(arguments={"k": TensorLimit(sizes={-1: Limit(one_of=(64,))})}),
                    Constraints(max_rank=3),
                )
            ),
            INDEXER,
            "fits: (1) dimension -1 of k must be 64, not 32; (2) takes at most 3 dimensions, not 4 (q)",
        ),
        (Constraints(any_of=(Constraints(max_rank=3), Constraints(max_rank=4))), INDEXER, ""),
    ],
)
def test_a_refusal_names_the_argument_what_was_wanted_and_what_came(
    limits: Constraints, call: Signature, reason: str
) -> None:
    assert constraint_fault(limits) == ""
    found = refuse_call(limits, call_of(call, "cpu"))
    assert bool(found) is bool(reason)
    assert found.endswith(reason)
    decision = judge(replace(implementation(call.op), constraints=limits), call, CPU)
    assert (decision.accepted, decision.reason) == (not reason, found or "because")


def test_an_argument_that_is_not_given() -> None:
    without = Signature(op="day0::topk_tokens", args=(tensor(1, 2, 9), scalar(4)))
    given = Signature(op="day0::topk_tokens", args=(tensor(1, 2, 9), scalar(4), tensor(1, 2, dtype="int32")))
    table: list[tuple[Limit | TensorLimit, str, str]] = [
        (TensorLimit(dtypes=frozenset({"int64"})), "", "lengths must be int64, not int32"),
        (TensorLimit(required=True), "lengths must be given", ""),
        (Limit(one_of=(None,)), "", "lengths must be None, not a tensor"),
    ]
    for limit, if_not, if_given in table:
        limits = Constraints(arguments={"lengths": limit})
        assert refuse_call(limits, call_of(without, "cpu")) == if_not
        assert refuse_call(limits, call_of(given, "cpu")) == if_given


def test_a_call_is_data_by_the_names_of_the_schema() -> None:
    call = call_of(DECODE, "sim")
    assert list(call.arguments) == ["codes", "scales", "dtype", "order"]
    assert (call.op, call.device, call.arguments["order"]) == ("day0::mxfp4_decode", "sim", "low_first")
    assert isinstance(call.arguments["dtype"], DtypeName)
    assert [one.shape for one in call.tensors] == [(4, 16), (4, 1)]
    assert [one.dtype for one in call_of(CAT, "cpu").tensors] == ["float32", "bfloat16"]
    unknown = call_of(Signature(op="nobody::knows", args=(tensor(2), scalar(1)), kwargs={"x": scalar(True)}), "cpu")
    assert list(unknown.arguments) == ["0", "1", "x"]
    with pytest.raises(TypeError):
        call.arguments["order"] = "high_first"  # type: ignore[index]  # that is the test


def _raises(call: Call) -> Accepted | Rejected:
    raise KeyError("head_dim")


@pytest.mark.parametrize(
    ("predicate", "reason"),
    [
        (lambda call: Accepted(), ""),
        (lambda call: Rejected("no tensor cores"), "no tensor cores"),
        (lambda call: Rejected(""), "its predicate rejects it and gives no reason"),
        (_raises, "its predicate raised KeyError: 'head_dim'"),
        (lambda call: True, "its predicate returned a bool, and not Accepted() or Rejected(reason)"),
        (lambda call: None, "its predicate returned a NoneType, and not Accepted() or Rejected(reason)"),
        (lambda: Accepted(), "its predicate raised TypeError"),
    ],
)
def test_a_predicate_accepts_or_gives_a_reason(predicate: Callable[[Call], Any], reason: str) -> None:
    decision = judge(replace(implementation("aten::topk"), predicate=predicate), TOPK, CPU)
    assert decision.accepted is (not reason)
    assert decision.reason.startswith(reason or "because")


def test_a_predicate_is_not_asked_about_what_constraints_refuse() -> None:
    one = replace(implementation("aten::topk"), predicate=_raises, constraints=Constraints(max_rank=1))
    assert judge(one, TOPK, CPU).reason == "takes at most 1 dimensions, not 2 (self)"


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        ("float32", "expected Constraints, got the str"),
        (Constraints(dtypes="float32"), "expected a frozenset"),  # type: ignore[arg-type]
        (Constraints(dtypes=frozenset({"fp32"})), "'fp32' is no dtype"),
        (Constraints(min_rank=3, max_rank=2), "min_rank 3 is more than max_rank 2"),
        (Constraints(max_rank=-1), "max_rank: -1 is no number of dimensions"),
        (Constraints(max_rank=True), "max_rank: True is no number of dimensions"),
        (Constraints(contiguous=1), "contiguous: expected True, False or None, got 1"),  # type: ignore[arg-type]
        (Constraints(multiple_of={0: -16}), "-16 is no divisor"),
        (Constraints(multiple_of={0: 0}), "0 is no divisor"),
        (Constraints(multiple_of={-1: 16}), "-1 is no position"),
        (Constraints(arguments={"k": 3}), "expected a Limit or a TensorLimit, got 3"),  # type: ignore[dict-item]
        (Constraints(arguments={"k": Limit(at_least=8, at_most=4)}), "at_least 8 is more than at_most 4"),
        (Constraints(arguments={"k": Limit(at_least=float("nan"))}), "at_least: nan is no number"),
        (Constraints(arguments={"k": Limit(multiple_of=-2)}), "-2 is no divisor"),
        (Constraints(arguments={"k": Limit(one_of=[1])}), "one_of: expected a tuple"),  # type: ignore[arg-type]
        (Constraints(arguments={"q": TensorLimit(min_rank=2, max_rank=1)}), "min_rank 2 is more than max_rank 1"),
        (Constraints(arguments={"q": TensorLimit(sizes={-1: Limit(at_least=-2)})}), "-2 is no size"),
        (Constraints(arguments={"q": TensorLimit(sizes={-1: Limit(one_of=(1.5,))})}), "1.5 is no size"),
        (Constraints(arguments={"q": TensorLimit(sizes={99: Limit()})}), "expected a dict from dimension to Limit"),
        (Constraints(equal=(("q", "k"),)), "expected ((name, dimension), (name, dimension))"),  # type: ignore[arg-type]
        (Constraints(any_of=(Constraints(max_rank=-1),)), "any_of: max_rank: -1"),
        (Constraints(any_of=(3,)), "any_of: expected Constraints, got the int 3"),  # type: ignore[arg-type]
    ],
)
def test_values_that_no_constraint_can_have(limits: Any, fault: str) -> None:
    assert fault in constraint_fault(limits)

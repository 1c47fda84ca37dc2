"""A call that was not traced and that the locked implementation does not take is refused, not computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from day0.implementation import Accepted, Call, Constraints, Implementation, Limit, Rejected, TensorLimit
from day0.records import Lock, LockEntry
from day0.registry.call_guard import RefusedCall, guard_of
from day0.registry.dispatch import activate

CPU = torch.device("cpu")

ONE = Implementation(
    operator="aten::topk",
    contract=1,
    id="mine",
    version="1.0",
    kind="kernel",
    run=lambda x, k, dim=-1, largest=True, sorted=True: torch.sort(x, descending=True),
    why="for a test",
    origin="mine.py:1",
    source_hash="sha256:1",
)


def _entry(one: Implementation) -> LockEntry:
    return LockEntry(
        operator=one.operator,
        dtypes=("float32",),
        signatures=(),
        identity=one.identity,
        kind=one.kind,
        source_hash=one.source_hash,
        origin=one.origin,
        decisions=(),
    )


def _lock(one: Implementation) -> Lock:
    return Lock(device="cpu", namespace="base", model="sha256:0", entries=(_entry(one),))


def _whole(call: Call) -> Accepted | Rejected:
    tensor: Any = call.arguments["self"]
    return Accepted() if tensor.shape[-1] == call.arguments["k"] else Rejected("k must be the whole row")


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Constraints(multiple_of={0: 8}), "multiple of 8, not 12"),
        (Constraints(max_rank=1), "at most 1"),
        (Constraints(contiguous=True), "contiguous"),
        (Constraints(arguments={"self": TensorLimit(sizes={-1: Limit(at_most=8)})}), "at most 8, not 12"),
        (Constraints(arguments={"k": Limit(one_of=(8,))}), "k must be 8"),
    ],
)
def test_a_call_outside_the_constraints_is_refused_by_name(limits: Constraints, reason: str) -> None:
    one = replace(ONE, constraints=limits)
    outside = torch.zeros(12, 2).T if limits.contiguous else torch.zeros(2, 12)
    with activate(_lock(one), CPU, [one]) as active:
        for _ in range(3):
            torch.topk(torch.arange(8.0), 8)
        for _ in range(2):
            with pytest.raises(RefusedCall) as caught:
                torch.topk(outside, 12)
        assert reason in caught.value.what
        assert "aten::topk by aten::topk@1 base:mine==1.0" in caught.value.where
        assert "mine.py:1" in caught.value.facts[0]
        torch.topk(torch.arange(8.0), 8)
        assert [receipt.calls for receipt in active.receipts()] == [4], "a refused call is none of its own"


def test_a_predicate_is_asked_too() -> None:
    one = replace(ONE, predicate=_whole)
    with activate(_lock(one), CPU, [one]):
        torch.topk(torch.arange(8.0), 8)
        with pytest.raises(RefusedCall, match="k must be the whole row"):
            torch.topk(torch.arange(8.0), 3)


def test_a_kind_of_call_is_looked_at_once() -> None:
    asked: list[tuple[int, ...]] = []

    def predicate(call: Call) -> Accepted:
        tensor: Any = call.arguments["self"]
        asked.append(tensor.shape)
        return Accepted()

    one = replace(ONE, predicate=predicate)
    with activate(_lock(one), CPU, [one]):
        for width in (8, 8, 9, 8, 9):
            torch.topk(torch.arange(float(width)), width)
    assert asked == [(8,), (9,)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((torch.zeros(4), 1), (torch.zeros(4), True)),
        ((torch.zeros(4), 1), (torch.zeros(4), 1.0)),
        ((torch.zeros(2, 4),), (torch.zeros(4, 2).T,)),
        (([torch.zeros(4)],), ([torch.zeros(4), torch.zeros(4)],)),
    ],
)
def test_different_calls_are_not_taken_for_each_other(first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    asked = 0

    def predicate(call: Call) -> Accepted:
        nonlocal asked
        asked += 1
        return Accepted()

    guard = guard_of(_entry(ONE), replace(ONE, predicate=predicate), "cpu")
    assert guard is not None
    for args in (first, second, first, second):
        guard.refuse(args, {})
    assert asked == 2


def test_one_that_takes_all_calls_of_its_dtypes_is_not_asked() -> None:
    assert guard_of(_entry(ONE), ONE, "cpu") is None
    by_dtype = replace(ONE, constraints=Constraints(dtypes=frozenset({"float32"})))
    assert guard_of(_entry(ONE), by_dtype, "cpu") is None


def test_the_package_that_brought_it_is_named_where_it_is_gone() -> None:
    entry = _entry(ONE).model_copy(update={"distribution": "acme-kernels==1.2.0"})
    lock = _lock(ONE).model_copy(update={"entries": (entry,)})
    with (
        pytest.raises(Exception, match=r"acme-kernels==1\.2\.0, which brought it, is not installed"),
        activate(lock, CPU, []),
    ):
        pass

"""What `day0 diff` makes of figures: slower operators, intervals, servers, ranks."""

from __future__ import annotations

import pytest

from day0.analyzers.diff.times import slower
from day0.records import (
    CanaryReport,
    EndpointPrompt,
    EndpointReport,
    FigureResult,
    GateResult,
    OperatorFigures,
    RanksReport,
    RanksRun,
)
from tests.analyzers.test_diff import case, compare, report, stage


def figures(*operators: tuple[str, float, int, str]) -> tuple[OperatorFigures, ...]:
    return tuple(
        OperatorFigures(
            operator=name, calls=calls, clock="sim", seconds=seconds, worst_seconds=0.0, bytes=1, flops=1,
            implementation=who,
        )
        for name, seconds, calls, who in operators
    )  # fmt: skip


def test_an_operator_is_slower_by_the_time_of_a_call_whoever_computes_it() -> None:
    old = figures(("aten::mm", 1.0, 10, "native"), ("aten::silu", 0.2, 10, "mine==1.0"), ("aten::add", 0.001, 1, "n"))
    new = figures(("aten::mm", 2.0, 20, "native"), ("aten::silu", 0.4, 10, "mine==1.1"), ("aten::add", 0.009, 1, "n"))
    (one,) = slower("all_layers", old, new)
    assert (one.kind, one.effect, one.subject, one.where) == ("slower", "worse", "aten::silu", "all_layers")
    assert (one.old, one.new) == ("2e+04 µs a call", "4e+04 µs a call")
    assert one.reason == "mine==1.0 → mine==1.1; 17% of the pass"


def test_an_interval_that_meets_the_other_is_no_regression() -> None:
    def one(value: float, low: float, high: float) -> CanaryReport:
        made = stage(value=value)
        (first,) = made.stages
        gates = tuple(gate.model_copy(update={"low": low, "high": high}) for gate in first.gates)
        return made.model_copy(update={"stages": (first.model_copy(update={"gates": gates}),)})

    apart, meet = one(2.0, 1.8, 2.2), one(2.0, 1.1, 2.9)
    assert [change.effect for change in compare(one(1.0, 0.8, 1.2), apart).changes] == ["worse"]
    assert [change.effect for change in compare(one(1.0, 0.8, 1.2), meet).changes] == ["other"]


def test_errors_are_told_in_what_the_dtype_costs() -> None:
    (one,) = compare(report(case()), report(case(error=5e-3))).changes
    assert one.reason.startswith("0.5 → 2.5 times the dtype's own")


def served(status: str = "pass", verdict: str = "successful", value: float = 1.0) -> EndpointReport:
    gate = GateResult(metric="kl", rule="<=", limit=3.0, value=value, verdict=verdict, passed=verdict != "failed")
    return EndpointReport(
        endpoint="u", model="m", api="chat", reference="r", prompts="p", prompts_sha256="x", concurrency=1,
        verdict="successful", gates=(gate,), figures={"kl": FigureResult(value=value)},
        results=(EndpointPrompt(name="capitals", status=status, reason="why"),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (served(), served(), []),
        (served(), served("explained"), [("status", "other")]),
        (served(), served("fail"), [("newly failing", "worse")]),
        (served("unanswered"), served(), [("fixed", "better")]),
        (served(), served("not_judged"), [("status", "worse")]),
        (served(), served(verdict="failed"), [("gate", "worse")]),
        (served(), served(value=2.0), [("gate", "worse")]),
        (served(), served(value=1.05), []),
    ],
)
def test_what_may_change_in_a_server(old: EndpointReport, new: EndpointReport, expected: list[tuple[str, str]]) -> None:
    assert [(one.kind, one.effect) for one in compare(old, new).changes] == expected


def started(status: str = "pass", verdict: str = "successful", seconds: float = 1.0, ranks: int = 2) -> RanksReport:
    gate = GateResult(metric="ranks_lost", rule="==", limit=0.0, value=0.0, verdict=verdict, passed=True)
    run = RanksRun(ranks=ranks, status=status, gates=(gate,), metrics={"decode_s": seconds}, reasons=("rank 1 died",))
    return RanksReport(
        model="toy", class_name="T", dtype="float32", seed=0, device="cpu", backend="gloo", prompt_tokens=1,
        new_tokens=1, runs=(run,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (started(), started(), []),
        (started(), started("fail"), [("newly failing", "worse")]),
        (started("fail"), started(), [("fixed", "better")]),
        (started(), started(verdict="failed"), [("gate", "worse")]),
        (started(), started(seconds=2.0), [("metric", "other")]),
        (started(), started(ranks=4), [("no longer there", "other"), ("new start", "other")]),
        (started(), started("fail", ranks=4), [("newly failing", "worse"), ("no longer there", "other")]),
    ],
)
def test_what_may_change_in_ranks(old: RanksReport, new: RanksReport, expected: list[tuple[str, str]]) -> None:
    assert [(one.kind, one.effect) for one in compare(old, new).changes] == expected

"""The XML of a record of ranks: red where a run failed, whatever its ranks have printed."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from day0.records import GateResult, RankResult, RanksReport, RanksRun
from day0.reports.ranks import render_ranks_junit


def gate(verdict: str, *, passed: bool) -> GateResult:
    found = {"metric": "ranks_lost", "rule": "==", "limit": 0, "value": None, "verdict": verdict, "passed": passed}
    return GateResult.model_validate({**found, "reason": "why"})


def made(*runs: RanksRun) -> ElementTree.Element:
    report = RanksReport(
        model="<toy>", class_name="T", dtype="float32", seed=0, device="cpu", backend="gloo", prompt_tokens=1,
        new_tokens=1, runs=runs,
    )  # fmt: skip
    return ElementTree.fromstring(render_ranks_junit(report))  # noqa: S314 - made here


def counts(element: ElementTree.Element) -> tuple[str, ...]:
    return tuple(element.get(name, "") for name in ("tests", "failures", "errors", "skipped"))


def test_gates_and_ranks_are_tests() -> None:
    good = RanksRun(
        ranks=1, status="pass", gates=(gate("successful", passed=True),), results=(RankResult(rank=0, status="done"),)
    )
    bad = RanksRun(
        ranks=2,
        planted="x",
        status="fail",
        gates=(gate("failed", passed=False), gate("inconclusive", passed=True)),
        results=(
            RankResult(rank=0, status="stopped"),
            RankResult(rank=1, status="raised", phase="decode", reason="\x1b]]>", log_tail=("a\x00<b", "last")),
            RankResult(rank=2, status="done", first_divergent="layers.3", divergence="error 0.1"),
        ),
    )
    root = made(good, bad)
    assert [counts(suite) for suite in root] == [("2", "0", "0", "0"), ("5", "2", "1", "2")]
    assert counts(root) == ("7", "2", "1", "2")
    assert root[1].get("name") == "day0.ranks <toy> on cpu: 2 planted x"
    assert root.findtext("testsuite/testcase/error") == "a\N{REPLACEMENT CHARACTER}<b\nlast"


@pytest.mark.parametrize("status", ["pass", "fail"])
def test_a_run_that_failed_is_red_whatever_its_gates_say(status: str) -> None:
    run = RanksRun.model_validate({"ranks": 2, "status": status, "reasons": ("no rank answered",)})
    assert (counts(made(run))[1] == "1") == (status == "fail")

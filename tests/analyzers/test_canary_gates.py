"""Gates: intervals decide, or say how much more would; what was not measured is never a pass without a word."""

from __future__ import annotations

import json
import math

import pytest

from day0.analyzers.canary.gates import (
    Figure,
    figure_results,
    first_failure,
    judge_gates,
    refuse_unknown_metrics,
    warnings,
)
from day0.errors import Day0Error
from day0.playbook import Gate
from day0.records import GateResult

NAN = float("nan")


def judged(rule: str, limit: float, figure: float | Figure, inconclusive: str | None = None) -> GateResult:
    gate = Gate.model_validate({"metric": "m", "rule": rule, "limit": limit, "inconclusive": inconclusive})
    (result,) = judge_gates((gate,), {"m": figure})
    return result


@pytest.mark.parametrize(
    ("rule", "figure", "verdict"),
    [
        ("<=", 1.0, "successful"),
        ("<=", 1.01, "failed"),
        (">=", 1.0, "successful"),
        (">=", 0.99, "failed"),
        ("==", 1.0, "successful"),
        ("==", 1.01, "failed"),
        ("<=", Figure(0.5, 0.2, 1.0), "successful"),
        ("<=", Figure(0.5, 0.2, 1.1), "inconclusive"),
        ("<=", Figure(1.5, 0.9, 2.0), "inconclusive"),
        ("<=", Figure(1.5, 1.1, 2.0), "failed"),
        (">=", Figure(1.5, 1.0, 2.0), "successful"),
        (">=", Figure(1.5, 0.9, 2.0), "inconclusive"),
        (">=", Figure(0.5, 0.2, 0.9), "failed"),
        ("==", Figure(1.0, 0.9, 1.1), "inconclusive"),
        ("==", Figure(2.0, 1.9, 2.1), "failed"),
        ("<=", Figure(2.0, low=-math.inf), "inconclusive"),
        ("<=", Figure(None, why="no counter here"), "inconclusive"),
    ],
)
def test_the_whole_interval_keeps_a_rule_or_breaks_it_or_neither(
    rule: str, figure: float | Figure, verdict: str
) -> None:
    found = judged(rule, 1.0, figure)
    assert found.verdict == verdict
    assert found.passed is (verdict != "failed")
    assert bool(found.reason) is (verdict != "successful")


@pytest.mark.parametrize("rule", ["<=", ">=", "=="])
def test_nan_fails_every_gate(rule: str) -> None:
    assert not judged(rule, 1.0, NAN).passed
    assert not judged(rule, 1.0, Figure(1.0, NAN, 1.0)).passed
    assert not judged(rule, 1.0, Figure(1.0, 1.0, NAN)).passed


@pytest.mark.parametrize("figure", [Figure(0.5, 0.2, 1.1), Figure(None, why="no counter here")])
def test_what_an_undecided_gate_does_is_data(figure: Figure) -> None:
    silent, loud, must = (judged("<=", 1.0, figure, one) for one in ("pass", "warn", "fail"))
    assert (silent.passed, loud.passed, must.passed) == (True, True, False)
    assert warnings((silent, loud, must)) == (loud.reason,)
    assert first_failure((silent, loud, must)) == must.reason
    assert judged("<=", 1.0, figure).inconclusive == "warn"


def test_a_figure_that_nobody_measured_is_not_decided_and_says_so() -> None:
    (result,) = judge_gates((Gate(metric="speed", rule=">=", limit=1),), {"error": 0.0})
    assert (result.verdict, result.value) == ("inconclusive", None)
    assert result.reason == "speed is not known: the stage did not measure it"


def test_it_says_how_many_more_samples_would_decide() -> None:
    found = judged("<=", 1.0, Figure(0.9, 0.7, 1.1, samples=25))
    assert found.reason == (
        "m is 0.9 (0.7 to 1.1), the gate says <= 1; 76 more samples would decide, if they are like those so far"
    )
    more = 25 + 76
    half = 0.2 * math.sqrt(25 / more)
    assert judged("<=", 1.0, Figure(0.9, 0.9 - half, 0.9 + half, samples=more)).verdict == "successful"
    half = 0.2 * math.sqrt(25 / (more - 3))
    assert judged("<=", 1.0, Figure(0.9, 0.9 - half, 0.9 + half, samples=more - 3)).verdict == "inconclusive"
    assert "more samples" not in judged("<=", 0.9, Figure(0.9, 0.7, 1.1, samples=25)).reason
    assert "more samples" not in judged("<=", 1.0, Figure(0.9, -math.inf, math.inf, samples=25)).reason


def test_a_name_that_is_not_measured_is_refused_with_what_is() -> None:
    refuse_unknown_metrics((Gate(metric="error", rule="<=", limit=1),), ("error",), "here")
    with pytest.raises(Day0Error) as caught:
        refuse_unknown_metrics((Gate(metric="eror", rule="<=", limit=1),), ("error", "x"), "here")
    assert caught.value.where == "here" and "error" in (caught.value.hint or "")


def test_figures_that_are_plain_numbers_stay_plain() -> None:
    assert list(figure_results({"a": 1.0, "b": Figure(1.0, unit="s")})) == ["b"]


def test_a_gate_of_an_older_record_has_a_verdict() -> None:
    old = {"metric": "m", "rule": "<=", "limit": 1.0, "value": 2.0, "passed": False, "reason": "r"}
    assert GateResult.model_validate_json(json.dumps(old)).verdict == "failed"
    assert GateResult.model_validate_json(json.dumps({**old, "passed": True})).verdict == "successful"

"""What counts as found and what does not; intervals; halves."""

from __future__ import annotations

from typing import Any

import pytest

from day0.analyzers.cases.case import Case
from day0.analyzers.selftest.judged import Judged
from day0.analyzers.selftest.scoring import alarm_of, found_of, held_out, objecting, wilson
from day0.devices.faults.load import load_faults
from day0.records import CaseResult, Signature


def _judged(status: Any, regime: str = "ordinary", *, reached: bool = True, objections: Any = ()) -> Judged:
    signature = Signature(op="aten::neg", args=(), kwargs={})
    case = Case(signature_id=f"{status}{regime}", signature=signature, regime=regime, seed=0)
    result = CaseResult(
        case=case.key,
        signature=case.signature_id,
        op="aten::neg",
        shapes="",
        implementation="native",
        regime=regime,
        seed=0,
        status=status,
        rule="exact",
        reason="because",
    )
    return Judged(case=case, result=result, reached=reached, objections=objections)


def _clean(*many: Judged, status: str = "pass") -> dict[str, str]:
    return {one.case.key: status for one in many}


@pytest.mark.parametrize(
    ("status", "regime", "how"),
    [
        ("fail", "ordinary", "values"),
        ("fail", "wide", "other_cases"),
        ("fail", "reported", "reported"),
        ("crashed", "ordinary", "raised"),
        ("hung", "ordinary", "raised"),
        ("fell_back", "ordinary", "not_on_device"),
        ("undelegated", "wide", "not_on_device"),
        ("pass", "ordinary", "missed"),
        ("skipped", "ordinary", "missed"),
        ("xfail", "ordinary", "missed"),
    ],
)
def test_a_fault_is_found_by_the_kind_of_its_evidence(status: str, regime: str, how: str) -> None:
    one = _judged(status, regime)
    assert found_of([one], _clean(one)).how == how


def test_the_strongest_evidence_counts_and_cases_are_counted() -> None:
    many = [_judged("crashed"), _judged("fail", "wide"), _judged("fail"), _judged("pass", "ties")]
    found = found_of(many, _clean(*many))
    assert (found.how, found.rule, found.reached, found.found) == ("values", "exact", 4, 3)
    assert "ordinary" in found.first


def test_what_is_reported_without_the_fault_too_shows_nothing() -> None:
    one = _judged("fail")
    assert found_of([one], _clean(one, status="fail")).how == "missed"
    assert found_of([one], {}).how == "missed"
    back = _judged("fell_back")
    assert found_of([back], _clean(back, status="fell_back")).how == "missed", "it falls back without the fault as well"


def test_a_case_that_never_came_to_the_faulty_kernel_shows_nothing() -> None:
    one = _judged("fail", reached=False)
    found = found_of([one], _clean(one))
    assert found.how == "missed"
    assert "none of 1 cases came to the faulty kernel" in found.reason
    assert "no call" in found_of([], {}).reason


def test_a_usual_rule_finds_what_it_does_not_object_to_without_the_fault() -> None:
    one = _judged("fail", objections=("a", "b"))
    rules = ("a", "b", "c")
    assert objecting([one], {}, rules) == {"a": True, "b": True, "c": False}
    assert objecting([one], {one.case.key: ("a",)}, rules) == {"a": False, "b": True, "c": False}


def test_an_alarm_is_anything_but_a_pass() -> None:
    assert alarm_of(_judged("pass").result) is None
    assert alarm_of(_judged("skipped").result) is None
    for status in ("fail", "crashed", "hung", "undelegated", "xpass"):
        found = alarm_of(_judged(status).result)
        assert found is not None
        assert (found.status, found.reason) == (status, "because")


def test_the_interval_is_that_of_wilson() -> None:
    # By hand for 8 of 10: (0.8 + z^2/20 -+ z sqrt(0.016 + z^2/400)) / (1 + z^2/10).
    assert wilson(8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-5)
    low, high = wilson(103, 103)
    assert high == 1.0
    assert low == pytest.approx(0.96405, abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 5)[0] == 0.0


def test_the_halves_are_about_halves_and_never_change() -> None:
    names = list(load_faults())
    share = sum(held_out(name) for name in names) / len(names)
    assert 0.35 < share < 0.65
    assert held_out("all_nan") == held_out("all_nan")
    assert [held_out(name) for name in ("all_nan", "half_as_much_again", "nibbles_swapped")] == [False, True, True]

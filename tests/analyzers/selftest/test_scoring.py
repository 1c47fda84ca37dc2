"""What counts as found and what does not; intervals; halves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from day0.analyzers.cases.case import Case
from day0.analyzers.selftest.judged import Judged
from day0.analyzers.selftest.scoring import (
    alarm_of,
    found_of,
    held_out,
    is_suspect,
    is_warned,
    strongest,
    wilson,
)
from day0.devices.faults.load import load_faults
from day0.records import CaseResult, Signature


def _judged(
    status: Any, regime: str = "ordinary", *, reached: bool = True, form: str = "traced", refusal: str = ""
) -> Judged:
    signature = Signature(op="aten::neg", args=(), kwargs={})
    case = Case(signature_id="0", signature=signature, regime=regime, seed=0, form=form, refusal=refusal)
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
    return Judged(case=case, result=result, reached=reached, objections=None)


@pytest.mark.parametrize(
    ("one", "how"),
    [
        (_judged("fail"), "values"),
        (_judged("fail", "wide"), "other_cases"),
        (_judged("fail", form="offset"), "other_cases"),
        (_judged("fail", refusal="other_dtype"), "other_cases"),
        (_judged("fail", "reported"), "reported"),
        (_judged("crashed"), "raised"),
        (_judged("hung"), "raised"),
        (_judged("fell_back"), "not_on_device"),
        (_judged("undelegated", "wide"), "not_on_device"),
    ],
)
def test_a_fault_is_found_by_the_kind_of_its_evidence(one: Judged, how: str) -> None:
    found = found_of([one], one)
    assert (found.how, found.found, found.is_found) == (how, 1, True)


@pytest.mark.parametrize("status", ["pass", "skipped", "xfail"])
def test_what_is_not_reported_is_missed(status: str) -> None:
    one = _judged(status)
    assert strongest([one]) == []
    found = found_of([one], None)
    assert (found.how, found.is_found) == ("missed", False)
    assert "none of them was judged wrong" in found.reason


def test_the_strongest_evidence_comes_first_and_cases_are_counted() -> None:
    many = [_judged("crashed"), _judged("fail", "wide"), _judged("fail"), _judged("pass", "ties")]
    assert [one.result.status for one in strongest(many)] == ["fail", "fail", "crashed"]
    found = found_of(many, strongest(many)[0])
    assert (found.how, found.rule, found.reached, found.found) == ("values", "exact", 4, 3)
    assert "ordinary" in found.first


def test_what_is_reported_without_the_fault_too_is_no_suspect() -> None:
    assert is_suspect(_judged("fail").result, "pass")
    assert not is_suspect(_judged("fail").result, "fail")
    assert not is_suspect(_judged("fail").result, "skipped")
    assert not is_suspect(_judged("fell_back").result, "fell_back"), "it falls back without the fault as well"
    assert "reported without the fault too" in found_of([_judged("fail")], None).reason


def test_a_case_that_never_came_to_the_faulty_kernel_shows_nothing() -> None:
    one = _judged("fail", reached=False)
    assert strongest([one]) == []
    assert "none of 1 cases came to the faulty kernel" in found_of([one], None).reason
    assert "no call" in found_of([], None).reason


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


def test_a_warning_is_a_find_only_where_it_is_owed_and_not_there_without_the_fault() -> None:
    right = _judged("pass")
    warned = replace(right, result=right.result.model_copy(update={"notes": ("warning: other bits", "something else")}))
    assert warned.result.warnings == ("other bits",)
    assert strongest([warned]) == []
    assert strongest([warned], warns=True) == [warned]
    assert strongest([right], warns=True) == []
    assert is_warned(warned.result, right.result)
    assert not is_warned(warned.result, warned.result)
    found = found_of([warned], warned, warns=True)
    assert (found.how, found.found, found.reason) == ("warned", 1, "other bits")
    assert alarm_of(warned.result) is None

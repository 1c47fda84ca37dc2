"""Known failures are strict in both directions."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from day0.analyzers.checking.expect import apply_expected, read_expected
from day0.errors import Day0Error
from day0.playbook import ExpectedFailure
from day0.records import CaseResult, CaseStatus

TODAY = date(2026, 11, 30)


def _case(status: CaseStatus, op: str = "aten::silu", regime: str = "ordinary") -> CaseResult:
    return CaseResult(
        case=f"{op}-{regime}", signature="a1", op=op, shapes="float32[4]", implementation="native", regime=regime, seed=0,
        status=status, rule="relative_l2", reason="too far" if status == "fail" else "",
    )  # fmt: skip


def _entry(**fields: object) -> ExpectedFailure:
    known = {"op": "aten::silu", "status": "fail", "reason": "ticket 1"}
    return ExpectedFailure.model_validate({**known, **fields})


def test_a_known_failure_is_none_and_says_why() -> None:
    (one,) = apply_expected([_case("fail")], [_entry()], TODAY)
    assert (one.status, one.failed) == ("xfail", False)
    assert "too far" in one.reason
    assert "ticket 1" in one.reason


def test_one_that_passes_is_a_failure() -> None:
    (one,) = apply_expected([_case("pass")], [_entry()], TODAY)
    assert (one.status, one.failed) == ("xpass", True)


def test_one_that_fails_in_another_way_stays_a_failure() -> None:
    (one,) = apply_expected([_case("crashed")], [_entry()], TODAY)
    assert (one.status, one.failed) == ("crashed", True)
    assert one.notes == ("expected to be fail: ticket 1",)


def test_after_its_day_the_failure_counts_again() -> None:
    (one,) = apply_expected([_case("fail")], [_entry(until="2026-11-29")], TODAY)
    assert one.status == "fail"
    assert apply_expected([_case("fail")], [_entry(until="2026-11-30")], TODAY)[0].status == "xfail"


def test_the_others_are_as_they_were_and_a_skipped_case_says_nothing() -> None:
    cases = [_case("fail"), _case("pass", regime="wide"), _case("skipped", regime="ties")]
    found = apply_expected(cases, [_entry(regime="ordinary"), _entry(regime="ties")], TODAY)
    assert [one.status for one in found] == ["xfail", "pass", "skipped"]


def test_an_entry_that_matches_nothing_is_an_error_with_near_names() -> None:
    with pytest.raises(Day0Error, match="no case is of this operator") as caught:
        apply_expected([_case("fail")], [_entry(op="aten::silo")], TODAY)
    assert caught.value.hint == "did you mean aten::silu?"
    with pytest.raises(Day0Error, match="no case of this operator is as it says") as caught:
        apply_expected([_case("fail")], [_entry(), _entry(shapes="float32[5]")], TODAY)
    assert caught.value.where == "expected failure 2: aten::silu"
    assert caught.value.facts == ("float32[4] [ordinary] a1",)


BAD = {
    "no reason": ("expect:\n- op: aten::silu\n  status: fail\n", "this field is missing"),
    "an empty reason": ("expect:\n- {op: a, status: fail, reason: ' '}\n", "expected a reason"),
    "no such status": ("expect:\n- {op: a, status: pass, reason: x}\n", "status"),
    "a field too many": ("expect:\n- {op: a, status: fail, reason: x, shape: y}\n", "there is no such field 'shape'"),
    "no list": ("- op: a\n", ""),
    "half a file": ("expect:\n- {op: a", "malformed YAML"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_list_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    text, said = BAD[name]
    path = tmp_path / "known.yaml"
    path.write_text(text)
    with pytest.raises(Day0Error) as caught:
        read_expected(path)
    assert said in str(caught.value)
    assert caught.value.where.startswith(str(path))

"""`day0 selftest`: what it refuses, what it says, and when it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from day0.cli import show_selftest
from day0.cli.selftest import has_passed
from day0.cli.talk import Talk
from day0.records import Alarm, FaultScore, Found, RightScore, SelftestReport
from tests.flow.conftest import run_day0

RULES = ("allclose 1e-2", "assert_close", "cosine 0.99")


def _fault(name: str, how: str, *, family: str = "views") -> FaultScore:
    found = Found(how=how, rule="exact", reached=4, found=3, first="aten::neg float32[2] ordinary", reason="why")
    return FaultScore(
        name=name,
        family=family,
        source="https://example.org/1",
        does="[red]does[/red] wrong",
        operators=("aten::neg",),
        held_out=name < "b",
        operator=found,
        model=Found(how="not_measured"),
        usual=dict.fromkeys(RULES, how == "values"),
    )


def _report(*hows: str, alarms: int = 0) -> SelftestReport:
    alarm = Alarm(
        op="aten::neg",
        shapes="float32[2]",
        implementation="native",
        case="1-ordinary-0",
        status="fail",
        rule="exact",
        reason="1 of 2 elements differ",
    )
    clean = RightScore(
        subject="clean device", judged=9, alarms=(alarm,) * alarms, usual_judged=8, usual=dict.fromkeys(RULES, 1)
    )
    faults = tuple(_fault(f"{chr(97 + number % 3)}{number}", how) for number, how in enumerate(hows))
    return SelftestReport(device="null", seeds=3, usual=RULES, faults=faults, right=(clean,))


def test_it_fails_below_99_percent_and_at_any_false_alarm() -> None:
    assert has_passed(_report(*["values"] * 99, "missed"))
    assert not has_passed(_report(*["values"] * 98, "missed", "missed"))
    assert not has_passed(_report(*["values"] * 9, "missed"))
    assert not has_passed(_report("values", alarms=1))


def test_what_was_missed_and_every_false_alarm_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    show_selftest.report(Talk(), _report("values", "missed", "raised", alarms=25))
    text = " ".join(capsys.readouterr().out.split())
    assert "missed b1 (views): [red]does[/red] wrong" in text
    assert "why; https://example.org/1" in text
    assert "false alarm clean device: aten::neg float32[2]" in text
    assert "and 5 more false alarms" in text
    assert "2 of 3 planted faults found, 25 false alarms" in text
    for title in ("open half", "held out half", "all", "legitimate differences", "bundled kernels", *RULES):
        assert title in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "rope_other_pairin"), "rope_other_pairing"),
        (("--device", "cpu"), "faults are planted on the simulated device"),
        (("--device", "nowhere"), "nowhere"),
        (("--seeds", "0"), "0"),
        (("--jobs", "many"), "--jobs"),
    ],
)
def test_bad_arguments_end_with_2(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = run_day0("selftest", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_two_processes_say_what_one_says(tmp_path: Path) -> None:
    options = ("selftest", "--device", "null", "--seeds", "1", "--only", "random", "--only", "all_nan", "--json")
    one, two = (run_day0(*options, "--jobs", jobs, cwd=tmp_path, cold=True) for jobs in (1, 2))
    assert json.loads(one.stdout)["body"] == json.loads(two.stdout)["body"]
    assert json.loads(one.stdout)["schema"] == "day0.selftest/1"
    assert one.returncode == two.returncode

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from day0.reports.annotations import SHOWN, github_annotations, github_summary, gitlab_quality
from day0.reports.bundle import Bundle
from day0.reports.problems import problems
from day0.reports.summarise import summarise
from day0.reports.summary import Summary

COMMAND = re.compile(r"::(error|warning|notice) (?:file=[^:,]*,line=\d+,)?title=[^:,]*::(.*)")
RUNS = ("good", "failing", "incomplete", "hostile")


def made(request: pytest.FixtureRequest, run: str) -> Summary:
    bundle: Bundle = request.getfixturevalue(run)
    return summarise(bundle)


@pytest.mark.parametrize("run", RUNS)
def test_every_line_is_one_whole_command(run: str, request: pytest.FixtureRequest) -> None:
    lines = github_annotations(made(request, run)).split("\n")
    assert lines.pop() == ""
    found = [COMMAND.fullmatch(line) for line in lines]
    assert all(found), lines
    for level in ("error", "warning", "notice"):
        assert sum(one is not None and one[1] == level for one in found) <= SHOWN


@pytest.mark.parametrize("run", RUNS)
def test_an_error_stands_where_the_run_did_not_pass(run: str, request: pytest.FixtureRequest) -> None:
    summary = made(request, run)
    assert ("::error " in github_annotations(summary)) is not summary.can_run
    levels = {one["severity"] for one in json.loads(gitlab_quality(summary))}
    assert bool(levels & {"critical", "blocker"}) is not summary.can_run


def test_nothing_to_show_is_one_notice(good: Bundle) -> None:
    summary = summarise(good).model_copy(update={"caveats": ()})
    assert github_annotations(summary).startswith("::notice title=toy-on-sim%3A ready::all 8 signatures")
    assert gitlab_quality(summary) == "[]\n"


def test_a_failing_run_names_gap_cases_and_gate(failing: Bundle) -> None:
    text = github_annotations(summarise(failing), root="runs/toy")
    assert "::error file=runs/toy/ops.lock,line=1,title=open gap%3A aten%3A%3Ahistc::aten::histc (int32) has no" in text
    # The kernel that is wrong is a file: it is shown beside its code, and not beside the record.
    assert "file=kernels/torch/composed.py,line=10,title=aten%3A%3Atopk%3A fail::aten::topk" in text
    assert "file=runs/toy/numerics.json,line=1,title=aten%3A%3Abmm%3A crashed::" in text
    assert "title=canary stage one_layer%3A worst_error <= 0.01::worst_error is 0.3" in text
    assert text.index("::error") < text.index("::warning")


def test_a_kernel_elsewhere_is_not_a_file_of_the_repository(failing: Bundle) -> None:
    for origin in ("/opt/kernels.py:3", "../kernels.py:3", "vendor 1.0, vendor/kernels.py:3", "C:\\k.py:3"):
        assert failing.lock is not None
        entries = tuple(one.model_copy(update={"origin": origin}) for one in failing.lock.entries)
        bundle = replace(failing, lock=failing.lock.model_copy(update={"entries": entries}))
        files = {one.file for one in problems(summarise(bundle))}
        assert files <= {"ops.lock", "numerics.json", "canary.json", "report/report.md"}, origin


@pytest.mark.parametrize(
    "text",
    [
        "x\n::add-mask::secret",
        "x\r\n::set-env name=PATH::/tmp",
        "::stop-commands::t",
        "%0A::error::x",
        "a,line=9::b",
        "\x1b[31mred",
        "\u2028::error::x",
    ],
)
def test_hostile_names_make_no_commands(text: str, failing: Bundle) -> None:
    # Without the types' own cleaning: each way out has to hold by itself.
    clean = summarise(failing)
    gaps = tuple(one.model_copy(update={"operator": text, "reason": text, "module": text}) for one in clean.gaps)
    steps = tuple(one.model_copy(update={"name": text, "reason": text, "diverged": text}) for one in clean.canary)
    cases = tuple(one.model_copy(update={"op": text, "shapes": text, "status": text}) for one in clean.failures)
    summary = clean.model_copy(
        update={"name": text, "gaps": gaps, "canary": steps, "failures": cases, "caveats": (text,)}
    )
    found = github_annotations(summary, root=text)
    lines = found.removesuffix("\n").split("\n")
    assert all(COMMAND.fullmatch(line) for line in lines)
    assert len(lines) == len(problems(summary))
    assert all(char == "\n" or char.isprintable() for char in found + gitlab_quality(summary, root=text))
    assert len(json.loads(gitlab_quality(summary, root=text))) <= len(lines)
    for line in github_summary(summary).split("\n"):
        assert not line.lstrip().startswith("::")
        assert "\x1b" not in line


def test_what_is_beyond_ten_is_counted(large: Bundle) -> None:
    summary = summarise(large)
    lines = [line for line in github_annotations(summary).split("\n") if line.startswith("::error")]
    errors = [one for one in problems(summary) if one.level == "error"]
    assert len(lines) == SHOWN
    assert (
        lines[-1] == f"::error title=day0::{len(errors) - SHOWN + 1:,} more, see report.md in the run folder's report"
    )
    assert len(github_summary(summary)) < 50_000


def test_quality_report_has_what_gitlab_asks_for(failing: Bundle) -> None:
    found = json.loads(gitlab_quality(summarise(failing), root="runs/toy"))
    assert {one["severity"] for one in found} <= {"info", "minor", "major", "critical", "blocker"}
    assert len({one["fingerprint"] for one in found}) == len(found)
    for one in found:
        assert set(one) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert re.fullmatch(r"[0-9a-f]{64}", one["fingerprint"])
        assert not one["location"]["path"].startswith(("/", "./"))
        assert one["location"]["lines"]["begin"] >= 1
    crashed = [one for one in found if one["check_name"] == "day0.check.crashed"]
    assert [one["severity"] for one in crashed] == ["blocker"]


def test_a_fingerprint_outlives_a_changed_figure(failing: Bundle) -> None:
    before = summarise(failing)
    cases = tuple(one.model_copy(update={"error": 0.5, "reason": "another figure"}) for one in before.failures)
    after = before.model_copy(update={"failures": cases})
    prints = [{one["fingerprint"] for one in json.loads(gitlab_quality(one_))} for one_ in (before, after)]
    assert prints[0] == prints[1]


def test_the_summary_says_verdict_stages_and_what_to_do(failing: Bundle) -> None:
    text = github_summary(summarise(failing))
    assert "**✗ Not ready**" in text
    assert "| canary    | ✗ fail" in text
    assert "`day0 register --run runs/toy-on-sim --with my_kernels.py`" in text
    assert "### Keeps it from passing" in text
    assert "open gap: `aten::histc`" in text

"""All five stages on the toy and the simulated device."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.flow.conftest import PLAYBOOKS, Done, run_day0, short_playbook

STAGES = ("trace", "inventory", "register", "check", "canary")
RECORDS = ("trace.json", "inventory.json", "ops.lock", "numerics.json", "canary.json")


class Twice(NamedTuple):
    folder: Path
    first: Done
    second: Done
    times: dict[str, int]


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Twice:
    """Run the short playbook two times in one folder, and the first time in a whole process of its own."""
    cwd = tmp_path_factory.mktemp("toy")
    folder, playbook = cwd / "runs" / "toy-on-sim", short_playbook(cwd, "generate")
    first = run_day0("run", playbook, cwd=cwd, cold=True)
    times = {name: (folder / name).stat().st_mtime_ns for name in RECORDS if (folder / name).exists()}
    return Twice(folder, first, run_day0("run", playbook, cwd=cwd), times)


@pytest.mark.slow
def test_the_playbook_as_it_is_passes(tmp_path: Path) -> None:
    done = run_day0("run", PLAYBOOKS / "toy-on-sim.yaml", cwd=tmp_path, cold=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^\d (?:trace|inventory|register|check|canary) +pass ", done.stdout, re.MULTILINE)) == 5
    verified = run_day0("report", "verify", "--run", "runs/toy-on-sim", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout


def test_the_first_run_passes_all_stages_and_names_the_report(twice: Twice) -> None:
    assert twice.first.returncode == 0, twice.first.stdout + twice.first.stderr
    for number, stage in enumerate(STAGES, start=1):
        assert re.search(rf"^{number} {stage} +pass ", twice.first.stdout, re.MULTILINE)
    assert "report: runs/toy-on-sim/report/report.html" in twice.first.stdout


def test_the_second_run_does_nothing_and_says_why(twice: Twice) -> None:
    assert twice.second.returncode == 0
    assert "nothing was run again" in twice.second.stdout
    assert twice.second.stdout.count("kept: its inputs are unchanged") == 5
    assert {name: (twice.folder / name).stat().st_mtime_ns for name in RECORDS} == twice.times


def test_every_report_is_there_and_can_be_read(twice: Twice) -> None:
    report = twice.folder / "report"
    assert json.loads((report / "report.json").read_text())
    assert (report / "report.md").read_text().startswith("# ")
    assert "<svg" in (report / "report.html").read_text()
    suites = ET.fromstring((report / "junit.xml").read_text())  # noqa: S314 - our own file
    assert suites.attrib["failures"] == "0"


def test_the_evidence_of_a_finished_run_holds_together(twice: Twice) -> None:
    done = run_day0("report", "verify", "--run", twice.folder, cwd=twice.folder)
    assert done.returncode == 0, done.stdout
    assert "cases in numerics.cases.jsonl" in done.stdout
    assert "could not be checked" not in done.stdout


def test_the_lock_shows_every_way_to_close_a_gap(twice: Twice) -> None:
    entries = json.loads((twice.folder / "ops.lock").read_text())["body"]["entries"]
    by_kind = {entry["kind"] for entry in entries}
    assert by_kind == {"decomposition", "reference", "cpu_fallback"}
    indexer = next(entry for entry in entries if entry["operator"] == "day0::lightning_indexer")
    assert indexer["identity"]["namespace"] == "kimi/k3.1"
    assert any(not decision["accepted"] for decision in indexer["decisions"])
    assert all(entry["source_hash"].startswith("sha256:") for entry in entries)


def test_what_falls_back_is_counted_not_passed(twice: Twice) -> None:
    cases = json.loads((twice.folder / "numerics.json").read_text())["body"]["cases"]
    fell_back = {case["op"] for case in cases if case["status"] == "fell_back"}
    assert fell_back == {"aten::silu"}
    stages = json.loads((twice.folder / "canary.json").read_text())["body"]["stages"]
    generate = next(one for one in stages if one["name"] == "generate")
    assert generate["metrics"]["fallbacks"] > 0
    assert generate["metrics"]["never_ran"] == 0


def test_status_of_a_finished_run(twice: Twice) -> None:
    done = run_day0("status", "--run", twice.folder, cwd=twice.folder)
    assert done.returncode == 0
    assert done.stdout.count("fresh") == 5


def test_a_dry_run_changes_nothing(twice: Twice, tmp_path: Path) -> None:
    done = run_day0("run", PLAYBOOKS / "toy-on-sim.yaml", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0
    assert "there is no trace.json yet" in done.stdout
    assert not (tmp_path / "runs").exists()


def test_without_replacements_the_gaps_of_the_profile_are_named(tmp_path: Path) -> None:
    done = run_day0("run", PLAYBOOKS / "toy-on-sim.yaml", "--no-replacements", cwd=tmp_path)
    assert done.returncode == 1
    gaps = json.loads((tmp_path / "runs/toy-on-sim/ops.lock").read_text())["body"]["gaps"]
    names = {gap["operator"] for gap in gaps}
    assert {"aten::rsqrt", "aten::silu", "day0::lightning_indexer", "day0::mxfp4_decode"} <= names
    for name in names:
        assert f"✗ {name}" in done.stdout
    assert re.search(r"^4 check +skip +register failed", done.stdout, re.MULTILINE)
    assert (tmp_path / "runs/toy-on-sim/report/report.html").is_file()


WRONG = """\
import torch
from day0.implementation import Implementation

IMPLEMENTATIONS = (
    Implementation(
        operator="aten::silu", contract=1, id="mine", version="1.0", kind="kernel",
        run=lambda x: x * torch.sigmoid({factor} * x), why="x times its sigmoid", devices=("sim",),
    ),
)
"""


def _traced(twice: Twice, cwd: Path) -> Path:
    """Copy the trace into a run folder of the same playbook, which is returned."""
    folder = cwd / "runs" / "toy-on-sim"
    folder.mkdir(parents=True)
    for name in ("trace.json", "plan.json"):
        shutil.copy(twice.folder / name, folder)
    return short_playbook(cwd)


def test_a_kernel_of_ones_own_takes_the_place_of_the_fallback(twice: Twice, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WRONG.format(factor=1))
    done = run_day0("run", _traced(twice, tmp_path), "--with", "mine.py", cwd=tmp_path)
    assert done.stdout.count("kept: its inputs are unchanged") == 1, "the trace alone"
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fell_back" not in done.stdout
    lock = json.loads((tmp_path / "runs/toy-on-sim/ops.lock").read_text())["body"]
    mine = next(entry for entry in lock["entries"] if entry["operator"] == "aten::silu")
    assert (mine["kind"], mine["origin"]) == ("kernel", "mine.py:7")


def test_a_wrong_kernel_of_ones_own_fails_the_check_and_does_not_reach_the_canary(twice: Twice, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WRONG.format(factor=1.01))
    done = run_day0("run", _traced(twice, tmp_path), "--with", "mine.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "✗ aten::silu" in done.stdout
    assert "base:mine==1.0: fail" in done.stdout
    assert re.search(r"^5 canary +skip +check failed", done.stdout, re.MULTILINE)
    refused = run_day0("canary", "--run", "runs/toy-on-sim", cwd=tmp_path)
    assert refused.returncode == 2
    assert "the lock is not verified" in refused.stderr
    let_in = run_day0("canary", "--run", "runs/toy-on-sim", "--allow-unverified", cwd=tmp_path)
    assert let_in.returncode == 1, "a silu that is one percent off shows in the layers"
    assert json.loads((tmp_path / "runs/toy-on-sim/canary.json").read_text())["body"]["allow_unverified"] is True


# Each time tests/flow/test_check_resume.py kills a check and goes on.
@pytest.mark.slow
def test_kill_9_in_the_middle_loses_nothing_that_was_finished(twice: Twice, tmp_path: Path) -> None:
    playbook = short_playbook(tmp_path)
    command = [sys.executable, "-m", "day0", "run", str(playbook)]
    journal = tmp_path / "runs/toy-on-sim/numerics.cases.jsonl"
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (journal.exists() and len(journal.read_bytes().splitlines()) > 40):
            time.sleep(0.01)  # until the check is in the middle of its cases
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not (journal.parent / "numerics.json").exists()
    finished = journal.read_text().splitlines()[1:-1]
    done = run_day0("run", playbook, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("kept: its inputs are unchanged") == 3, "the three stages before the kill"
    assert journal.read_text().splitlines()[1 : 1 + len(finished)] == finished
    for name in ("trace.json", "inventory.json"):
        assert _body(journal.parent / name) == _body(twice.folder / name), name
    assert _chosen(journal.parent) == _chosen(twice.folder)
    assert _cases(journal.parent) == _cases(twice.folder)


def _body(record: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(record.read_text())["body"]
    return body


def _chosen(folder: Path) -> list[Any]:
    """Return what the lock chose for which calls."""
    return [[entry["identity"], entry["signatures"]] for entry in _body(folder / "ops.lock")["entries"]]


def _cases(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _body(folder / "numerics.json")["cases"]
    return found

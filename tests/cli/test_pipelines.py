"""`day0 report --ci`: what a pipeline reads, and what it must not be made to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from day0.cli.app import app
from day0.codec import decode, encode
from day0.records import Trace


def day0(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ci") / "run"
    assert day0("trace", "toy", "--run", folder, "--phase", "prefill=4").exit_code == 0
    return folder


def test_annotations_are_printed_and_files_are_left(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(made / "job.md"))
    done = day0("report", "--run", made, "--ci")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("::stop-commands::"), "whatever is said is no command"
    word = lines[0].removeprefix("::stop-commands::")
    assert lines[lines.index(f"::{word}::") + 1].startswith("::error file=inventory.json,line=1,title=inventory%3A not")
    assert "::error" in (made / "report/annotations.txt").read_text()
    assert json.loads((made / "report/gitlab.json").read_text())[0]["severity"] == "critical"
    assert "**✗ Not ready**" in (made / "job.md").read_text()
    assert day0("report", "--run", made, "--ci").exit_code == 0
    assert (made / "job.md").read_text().count("Not ready") == 2, "another step's words are kept"


def test_nothing_is_printed_or_written_unasked(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(made / "unasked.md"))
    done = day0("report", "--run", made)
    assert "::" not in done.output
    assert not (made / "unasked.md").exists()


def test_json_stays_alone_on_stdout(made: Path) -> None:
    done = day0("report", "--run", made, "--ci", "--json")
    assert json.loads(done.stdout)["schema"] == "day0.report/1"
    assert "::error" in done.stderr


def test_a_summary_that_cannot_be_written_is_told(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(made / "nowhere" / "job.md"))
    done = day0("report", "--run", made, "--ci")
    assert done.exit_code == 2
    assert "GITHUB_STEP_SUMMARY: the job's summary cannot be written" in done.stderr


def test_a_hostile_model_makes_no_command(made: Path) -> None:
    found = decode(Trace, (made / "trace.json").read_text(), where="", remake="")
    model = found.record.model.model_copy(update={"source": "toy\n::add-mask::x\r##[error]y"})
    record = found.record.model_copy(update={"model": model, "mode_reason": "\n::error::z", "entries": ()})
    (made / "trace.json").write_text(encode(record, inputs=found.inputs, environment=found.environment))
    done = day0("report", "--run", made, "--ci")
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stdout.splitlines() if line.lstrip().startswith("::")]
    word = lines[0].removeprefix("::stop-commands::")
    known = ("::stop-commands::", f"::{word}::", "::error file=", "::warning file=")
    assert [line for line in lines if not line.startswith(known)] == []
    assert any("::error::z" in line for line in lines), "what was planted is shown as text"

"""`day0 run` with several runs: processes, the closing table, exit codes, what pipelines get."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.flow.conftest import Done, is_running, run_day0

FACTORY = """\
import os, pathlib, signal, time
import torch


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.inner(x))


def make(do="pass"):
    pathlib.Path(f"{do}.pid").write_text(str(os.getpid()))
    if do == "sleep":
        time.sleep(600)
    if do == "deaf":
        while True:
            try:
                time.sleep(600)
            except KeyboardInterrupt:
                pass
    if do == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "raise":
        raise ValueError("no such weights")
    return Small(), (torch.randn(2, 8),)
"""

PLAYBOOK: dict[str, Any] = {
    "schema": "day0.playbook/1",
    "name": "p-${do}",
    "vars": {"do": "pass"},
    "model": {"source": "py:small.py:make", "dtype": "float32", "set": {"do": "${do}"}},
    "device": "null",
    "check": {"level": "ops", "regimes": ["ordinary"], "derived": False},
    "canary": {"stages": {"load": {}}},
}


def _playbook(folder: Path, *does: str, file: str = "p.yaml", **changes: object) -> Path:
    (folder / "small.py").write_text(FACTORY)
    path = folder / file
    matrix = {"matrix": {"do": list(does)}} if does else {}
    path.write_text(yaml.safe_dump({**PLAYBOOK, **matrix, **changes}, sort_keys=False))
    return path


def _table(done: Done) -> dict[str, tuple[str, str]]:
    """Return what the closing table says of each run: the marks of its stages, and the verdict."""
    lines = done.stdout.partition("\nrun ")[2].splitlines()[1:]
    cells = [re.split(r" {2,}", line.strip()) for line in lines]
    return {row[0]: (" ".join(cell[0] for cell in row[1:6]), row[7]) for row in cells if len(row) == 8}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """Four runs side by side in a pipeline: one passes, one fails by its gate, one has bad input, one dies."""
    folder = tmp_path_factory.mktemp("mixed")
    _playbook(folder, "pass", "raise", "die")
    hostile = {"name": "bad-::error::x%0A", "canary": {"stages": {"load": {"gates": [_GATE]}}}}
    _playbook(folder, file="q.yaml", **hostile)
    flags = ("--parallel", 2, "--ci", "--annotations", "github", "--artifacts", "out")
    environment = {"GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    (folder / "summary.md").write_text("before\n")
    os.environ.update(environment)
    try:
        return folder, run_day0("run", "p.yaml", "q.yaml", *flags, cwd=folder)
    finally:
        del os.environ["GITHUB_STEP_SUMMARY"]


_GATE = {"metric": "changed_tensors", "rule": ">=", "limit": 1}


def test_one_that_fails_does_not_stop_the_others(mixed: tuple[Path, Done]) -> None:
    folder, done = mixed
    assert done.returncode == 2, "bad input in one of them"
    assert _table(done) == {
        "p-pass": ("✓ ✓ ✓ ✓ ✓", "ready"),
        "p-raise": ("- - - - -", "bad input"),
        "p-die": ("- - - - -", "not ready"),
        "bad-::error::x%0A": ("✓ ✓ ✓ ✓ ✗", "not ready"),
    }, done.stdout + done.stderr
    assert "p-die: its process was ended by SIGKILL" in done.stdout
    assert (folder / "runs" / "p-pass" / "report" / "report.html").is_file()


def test_what_a_run_prints_stays_together(mixed: tuple[Path, Done]) -> None:
    _, done = mixed
    blocks = re.split(r"^── ", done.stdout.partition("\nrun ")[0], flags=re.MULTILINE)[1:]
    by_name = {block.split("\n", 1)[0]: block for block in blocks}
    assert by_name.keys() == {"p-pass", "p-raise", "p-die", "bad-::error::x%0A"}
    assert "no such weights" in by_name["p-raise"]
    assert "p-pass" in by_name["p-pass"].split("\n", 1)[1]
    assert "p-raise" not in by_name["p-pass"]
    assert "[p-pass] trace pass in" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_annotations_stand_alone_and_nothing_printed_before_can_be_one(mixed: tuple[Path, Done]) -> None:
    _, done = mixed
    first, *rest = done.stdout.splitlines()
    word = first.removeprefix("::stop-commands::")
    assert len(word) >= 32
    commands = rest[rest.index(f"::{word}::") + 1 :]
    assert commands[0].startswith("artifacts: ")
    errors = [line for line in commands if line.startswith("::error ")]
    titled = [line for line in errors if "title=p-raise" in line or "title=p-die" in line]
    assert len(titled) == 2
    assert any("canary" in line for line in errors), "the gate of the fourth"
    assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in commands[1:])


def test_the_job_summary_is_added_to(mixed: tuple[Path, Done]) -> None:
    folder, _ = mixed
    text = (folder / "summary.md").read_text()
    assert text.startswith("before\n## day0\n")
    assert re.search(r"^\| p-pass +\| ✓ ", text, re.MULTILINE)
    assert "p-die: its process was ended by SIGKILL" in text


def test_artifacts_have_stable_names(mixed: tuple[Path, Done]) -> None:
    folder, _ = mixed
    out = folder / "out"
    summary = json.loads((out / "summary.json").read_text())
    assert [(run["name"], run["code"]) for run in summary["runs"]] == [
        ("p-pass", 0), ("p-raise", 2), ("p-die", 1), ("bad-::error::x%0A", 1),
    ]  # fmt: skip
    assert [stage["stage"] for stage in summary["runs"][0]["stages"]] == [
        "trace", "inventory", "register", "check", "canary",
    ]  # fmt: skip
    for name in ("report/report.html", "report/junit.xml", "plan.json", "timing.json", "ops.lock"):
        assert (out / "p-pass" / name).is_file(), name


def test_the_plan_of_a_run_is_what_remains(mixed: tuple[Path, Done]) -> None:
    folder, _ = mixed
    plan = json.loads((folder / "runs" / "p-pass" / "plan.json").read_text())
    assert (plan["name"], plan["model"]["set"]) == ("p-pass", {"do": "pass"})
    assert not {"vars", "matrix", "include"} & set(plan)


def test_status_shows_how_long_it_took(mixed: tuple[Path, Done]) -> None:
    folder, _ = mixed
    done = run_day0("status", "--run", "runs/p-pass", "--json", cwd=folder)
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert all(row["fresh"] and row["seconds"] >= 0 for row in found["stages"])
    assert found["seconds"] == pytest.approx(sum(row["seconds"] for row in found["stages"]), abs=0.01)
    assert "s in all" in done.stderr
    (folder / "runs" / "p-pass" / "timing.json").write_text('{"schema": "day0.timing/1", "stages": {"trace": "x"}')
    assert run_day0("status", "--run", "runs/p-pass", cwd=folder).returncode == 0, "it only informs"


def test_one_after_another_and_the_first_failure_ends_them(tmp_path: Path) -> None:
    _playbook(tmp_path, "raise", "pass")
    done = run_day0("run", "p.yaml", "--fail-fast", "--json", cwd=tmp_path)
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert [(run["name"], run["verdict"]) for run in found["runs"]] == [
        ("p-raise", "bad input"),
        ("p-pass", "not begun"),
    ]
    assert not (tmp_path / "pass.pid").exists()
    assert "no such weights" in done.stderr


def test_a_failure_ends_those_beside_it(tmp_path: Path) -> None:
    _playbook(tmp_path, "sleep", "raise")
    done = run_day0("run", "p.yaml", "--fail-fast", "--parallel", 2, cwd=tmp_path)
    assert done.returncode == 2
    assert {name: verdict for name, (_, verdict) in _table(done).items()} == {
        "p-sleep": "interrupted",
        "p-raise": "bad input",
    }
    assert "p-sleep: stopped: p-raise failed" in done.stdout


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.slow)],
)
def test_an_interrupt_ends_all_runs(tmp_path: Path, number: signal.Signals, code: int) -> None:
    _playbook(tmp_path, "sleep", "deaf" if number is signal.SIGKILL else "sleep2")
    text = (tmp_path / "small.py").read_text().replace('do == "sleep"', 'do in ("sleep", "sleep2")')
    (tmp_path / "small.py").write_text(text)
    command = [sys.executable, "-m", "day0", "run", "p.yaml", "--parallel", "2"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as started:
        files = [tmp_path / "sleep.pid", tmp_path / ("deaf.pid" if number is signal.SIGKILL else "sleep2.pid")]
        while started.poll() is None and not all(file.exists() and file.read_text() for file in files):
            time.sleep(0.05)
        started.send_signal(number)
        output, _ = started.communicate(timeout=300)
    assert started.returncode == code
    pids = [int(file.read_text()) for file in files]
    until = time.monotonic() + 60.0
    while any(map(is_running, pids)):
        assert time.monotonic() < until, "runs go on after the one that started them"
        time.sleep(0.05)
    assert ("interrupted" in output) == (number is signal.SIGINT)


def test_one_run_with_bad_input_in_a_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _playbook(tmp_path, device="cuda9")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "pipe"))
    done = run_day0("run", "p.yaml", "--ci", "--annotations", "github", "--artifacts", "out", cwd=tmp_path)
    assert done.returncode == 2
    *_, last = done.stdout.splitlines()
    assert last.startswith("::error title=p-pass::device 'cuda9': there is no such profile")
    assert "it is no file" in done.stderr
    assert json.loads((tmp_path / "out/summary.json").read_text())["runs"][0]["verdict"] == "bad input"


def test_dry_run_as_json(tmp_path: Path) -> None:
    _playbook(tmp_path, "pass", "die", device="null")
    done = run_day0("run", "p.yaml", "--dry-run", "--json", "--only", "p-pass", cwd=tmp_path)
    assert done.returncode == 0
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["name"], run["run"], run["chosen"]) == ("p-pass", "runs/p-pass", {"do": "pass"})
    assert [row["stage"] for row in run["stages"]] == ["trace", "inventory", "register", "check", "canary"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("p.yaml", "p.yaml"), "two playbooks have this name"),
        (("p.yaml", "--only", "p-pas"), "there is no run of this name"),
        (("p.yaml", "--var", "dp=1"), "did you mean do?"),
        (("p.yaml", "--var", "do"), "expected key=value"),
        (("p.yaml", "--annotations", "gitlab"), "'gitlab' is not known"),
        (("p.yaml", "--artifacts", "p.yaml/x"), "cannot be used as a folder"),
        (("d.yaml", "--device", "cpu"), "the device is an axis of the matrix"),
        (("missing.yaml",), "there is no such playbook"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(tmp_path: Path, flags: tuple[str, ...], text: str) -> None:
    _playbook(tmp_path, "pass", "die")
    _playbook(tmp_path, file="d.yaml", matrix={"device": ["sim", "null"]})
    done = run_day0("run", *flags, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert text in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_file_given_with_a_run_is_found_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("IMPLEMENTATIONS = ()\n")
    (tmp_path / "mine.yaml").write_text(run_day0("device", "show", "null", cwd=tmp_path).stdout)
    _playbook(tmp_path, file="one.yaml")
    flags = ("--run", "runs/one", "--with", "mine.py", "--device", "mine.yaml")
    assert run_day0("run", "one.yaml", *flags, cwd=tmp_path).returncode == 0
    plan = json.loads((tmp_path / "runs/one/plan.json").read_text())
    assert (plan["register"]["load"], plan["device"]) == (["../../mine.py"], "../../mine.yaml")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "small.py").symlink_to(tmp_path / "small.py")
    done = run_day0("register", "--run", tmp_path / "runs/one", cwd=elsewhere)
    assert done.returncode == 0, done.stderr

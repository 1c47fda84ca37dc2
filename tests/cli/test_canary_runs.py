"""`day0 canary` on a run folder: what would run, what is kept, what a killed run loses, and the way back."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from day0.analyzers.canary import stage_10_load, stage_30_one_layer, stage_40_some_layers
from day0.cli import commands
from day0.cli.canary import PARTIAL
from day0.cli.canary_history import HISTORY, last_good, read_history
from day0.cli.rundir import RunFolder
from day0.cli.stages import STAGES, inputs_of
from day0.errors import Day0Error
from day0.playbook import Gate
from tests.canary_ready import canary, make_ready, session_of, stages_of, without_check

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("load", "one_layer", "some_layers")


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy on a device that lacks nothing, up to a check that has nothing to say."""
    run = tmp_path_factory.mktemp("canary") / "r"
    make_ready(run, "null", ["prefill=6"], NAMES, prompt_tokens=6, new_tokens=2)
    return run


@pytest.fixture
def run(ready: Path) -> Path:
    """The same folder without any canary."""
    for name in ("canary.json", PARTIAL, HISTORY, "canary.prom"):
        (ready / name).unlink(missing_ok=True)
    without_check(ready)
    return ready


def _counting(monkeypatch: pytest.MonkeyPatch, module: Any, calls: list[str], fail: bool = False) -> None:
    original: Callable[[Any], Any] = module.run

    def counted(context: Any) -> Any:
        calls.append(module.TITLE)
        if fail:
            raise KeyboardInterrupt
        return original(context)

    monkeypatch.setattr(module, "run", counted)


def test_a_dry_run_says_what_would_run_and_runs_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert canary(run, dry_run=True, only=("load",)) == 0
    said = capsys.readouterr().out
    assert "run   load         load; gates: changed_tensors == 0" in said
    assert "skip  some_layers  nobody asked for it" in said
    assert not (run / "canary.json").exists()


def test_a_run_that_dies_loses_the_stage_in_flight_and_goes_on_after_the_others(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    with monkeypatch.context() as patch:
        _counting(patch, stage_40_some_layers, calls, fail=True)
        with pytest.raises(KeyboardInterrupt):
            canary(run)
    assert list(stages_of(run, PARTIAL)) == ["load", "one_layer"] and not (run / "canary.json").exists()
    _counting(monkeypatch, stage_30_one_layer, calls)
    _counting(monkeypatch, stage_40_some_layers, calls)
    capsys.readouterr()
    assert canary(run, resume=True) == 0
    said = capsys.readouterr()
    assert "kept from the earlier run: load, one_layer" in said.out + said.err
    assert calls == [stage_40_some_layers.TITLE] * 2
    found = stages_of(run)
    assert [found[name]["status"] for name in NAMES] == ["pass"] * 3
    assert [found[name]["kept"] for name in NAMES] == [True, True, False]


KILLED = """
import os, signal, sys
from pathlib import Path
from day0.analyzers.canary import stage_40_some_layers
from tests.canary_ready import canary
stage_40_some_layers.run = lambda context: os.kill(os.getpid(), signal.SIGKILL)
canary(Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_kill_9_loses_the_stage_in_flight(run: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, run], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list(stages_of(run, PARTIAL)) == ["load", "one_layer"]
    assert canary(run, resume=True) == 0
    assert [stages_of(run)[name]["kept"] for name in NAMES] == [True, True, False]


def test_what_has_changed_since_is_not_kept(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert canary(run, only=("load",)) == 0
    folder = RunFolder(run)
    plan = folder.read_plan()
    assert plan is not None
    folder.write_plan(plan.model_copy(update={"canary": plan.canary.model_copy(update={"prompt_tokens": 7})}))
    capsys.readouterr()
    try:
        assert canary(run, resume=True, dry_run=True) == 0
        assert "nothing can be kept, since these changed: gates" in "".join(capsys.readouterr())
        (run / PARTIAL).write_text((run / PARTIAL).read_text()[:200])
        assert canary(run, resume=True, dry_run=True) == 0
        assert "nothing can be kept" in "".join(capsys.readouterr())
    finally:
        folder.write_plan(plan)


def test_some_stages_are_no_whole_canary(run: Path) -> None:
    assert canary(run, only=("load",)) == 0
    assert stages_of(run)["some_layers"]["skip"] == "not_asked"
    session = session_of(run)
    session.allow_unverified = True
    stage = next(one for one in STAGES if one.name == "canary")
    found = session.folder.freshness(stage.record, inputs_of(stage, session))
    assert (found.fresh, found.reason) == (False, "changed since: stages")
    assert canary(run, first="one_layer") == 0
    assert [stages_of(run)[name]["status"] for name in NAMES] == ["pass"] * 3
    assert stages_of(run)["load"]["kept"] is True


def test_a_failure_names_the_lock_that_passed_last_and_the_way_back(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert canary(run) == 0
    (line,) = read_history(run)
    assert (line.passed, line.whole, line.planted) == (True, True, False)
    assert (run / line.file).read_bytes() == (run / "ops.lock").read_bytes()
    canary(run)
    assert len(read_history(run)) == 1, "a canary that was kept is no new one"
    assert last_good(run, line.device, line.model, other_than=line.lock) is None
    monkeypatch.setattr("day0.cli.canary.body_hash", lambda record: "sha256:another")
    monkeypatch.setattr(stage_10_load, "GATES", (Gate(metric="tensors", rule="<=", limit=0),))
    (run / "canary.json").unlink()
    capsys.readouterr()
    assert canary(run) == 1
    said = capsys.readouterr().out
    assert f"back to it: cp {run / line.file} {run / 'ops.lock'} && day0 canary --run {run} --frozen" in said
    assert "next: day0 check --level model --run" in said
    failed = read_history(run)[-1]
    assert (failed.passed, failed.file) == (False, "") and failed.failed.startswith("load: tensors is ")


def test_a_history_that_was_cut_off_is_read_and_goes_on_in_a_new_line(run: Path) -> None:
    assert canary(run, only=("load",)) == 0
    path = run / HISTORY
    whole = path.read_text()
    path.write_text(whole + whole[: len(whole) // 2])
    assert len(read_history(run)) == 1
    assert canary(run, only=("one_layer",)) == 0
    lines = read_history(run)
    assert len(lines) == 2 and not lines[-1].whole and lines[-1].file == ""
    path.write_bytes(b"\xff\xfe{\n\n[]\n" + whole.encode())
    assert len(read_history(run)) == 1


def test_mistakes_are_the_users_to_repair_before_anything_runs(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    _counting(monkeypatch, stage_30_one_layer, calls)
    with pytest.raises(Day0Error, match="the canary of this run has no such stage"):
        canary(run, only=("lod",))
    with pytest.raises(Day0Error, match="the lock is not verified"):
        commands.stage(name="canary", run=run, force=False, json=False)
    assert canary(run, only=("some_layers",)) == 0
    other = run.parent / "other"
    other.mkdir(exist_ok=True)
    (file,) = (run / "reference").glob("some_layers-*.safetensors")
    data = file.read_bytes().replace(b"torch.float32", b"torch.float64")
    (other / file.name).write_bytes(data)
    (run / "canary.json").unlink()
    with pytest.raises(Day0Error, match="the reference belongs to another model: it differs in dtype"):
        canary(run, only=("some_layers",), reference=other)
    assert calls == []


def test_the_figures_are_there_for_other_tools(run: Path) -> None:
    assert canary(run, only=("load",)) == 0
    assert (
        'day0_canary_stage{model="toy",device="null",stage="load",status="pass"} 1.0'
        in (run / "canary.prom").read_text()
    )

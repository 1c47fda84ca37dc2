"""`day0 canary` on a run folder: what would run, what is kept, what a killed run loses, and the way back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from day0.analyzers.canary import stage_10_load, stage_30_one_layer, stage_40_some_layers
from day0.cli import commands
from day0.cli.canary import PARTIAL
from day0.cli.canary_ask import CanaryAsk
from day0.cli.canary_history import HISTORY, last_good, read_history
from day0.cli.rundir import RunFolder
from day0.cli.session import Session
from day0.cli.stages import STAGES, inputs_of
from day0.cli.talk import Talk
from day0.codec import body_hash
from day0.errors import Day0Error
from day0.playbook import CanaryPlan, Gate, StagePlan
from day0.records import Lock, NumericsReport

NAMES = ("load", "one_layer", "some_layers")


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy on a device that lacks nothing, up to a check that has nothing to say."""
    run = tmp_path_factory.mktemp("canary") / "r"
    commands.trace(
        model="toy", run=run, sets=[], dtype="float32", mode="auto", shrink=False, batch=1, phases=["prefill=6"],
        trust_remote_code=False, force=False, json=False,
    )  # fmt: skip
    commands.stage(name="inventory", run=run, force=False, json=False, device="null")
    commands.stage(name="register", run=run, force=False, json=False)
    folder = RunFolder(run)
    plan = folder.read_plan()
    assert plan is not None
    stages = {name: StagePlan() for name in NAMES}
    folder.write_plan(plan.model_copy(update={"canary": CanaryPlan(stages=stages, prompt_tokens=6, new_tokens=2)}))
    return run


@pytest.fixture
def run(ready: Path) -> Path:
    """The same folder without any canary."""
    for name in ("canary.json", PARTIAL, HISTORY, "canary.prom"):
        (ready / name).unlink(missing_ok=True)
    folder = RunFolder(ready)
    lock = folder.need(Lock).record
    report = NumericsReport(device=lock.device, lock=body_hash(lock), seed=0, cases=())
    session = _session(ready)
    check = next(one for one in STAGES if one.name == "check")
    folder.write(report, inputs=inputs_of(check, session), environment=session.environment)
    return ready


def _session(run: Path) -> Session:
    folder = RunFolder(run)
    plan = folder.read_plan()
    assert plan is not None
    return Session(plan=plan, folder=folder, talk=Talk(as_json=True))


def _canary(run: Path, **asked: Any) -> int:
    dry = asked.pop("dry_run", False)
    return commands.stage(
        name="canary", run=run, force=False, json=False, allow_unverified=True, ask=CanaryAsk(**asked), dry_run=dry
    )


def _stages(run: Path, file: str = "canary.json") -> dict[str, dict[str, Any]]:
    return {stage["name"]: stage for stage in json.loads((run / file).read_text())["body"]["stages"]}


def _counting(monkeypatch: pytest.MonkeyPatch, module: Any, calls: list[str], fail: bool = False) -> None:
    original: Callable[[Any], Any] = module.run

    def counted(context: Any) -> Any:
        calls.append(module.TITLE)
        if fail:
            raise KeyboardInterrupt
        return original(context)

    monkeypatch.setattr(module, "run", counted)


def test_a_dry_run_says_what_would_run_and_runs_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _canary(run, dry_run=True, only=("load",)) == 0
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
            _canary(run)
    assert list(_stages(run, PARTIAL)) == ["load", "one_layer"] and not (run / "canary.json").exists()
    _counting(monkeypatch, stage_30_one_layer, calls)
    _counting(monkeypatch, stage_40_some_layers, calls)
    capsys.readouterr()
    assert _canary(run, resume=True) == 0
    said = capsys.readouterr()
    assert "kept from the earlier run: load, one_layer" in said.out + said.err
    assert calls == [stage_40_some_layers.TITLE] * 2
    found = _stages(run)
    assert [found[name]["status"] for name in NAMES] == ["pass"] * 3
    assert [found[name]["kept"] for name in NAMES] == [True, True, False]


def test_what_has_changed_since_is_not_kept(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _canary(run, only=("load",)) == 0
    folder = RunFolder(run)
    plan = folder.read_plan()
    assert plan is not None
    folder.write_plan(plan.model_copy(update={"canary": plan.canary.model_copy(update={"prompt_tokens": 7})}))
    capsys.readouterr()
    try:
        assert _canary(run, resume=True, dry_run=True) == 0
        assert "nothing can be kept, since these changed: gates" in "".join(capsys.readouterr())
        (run / PARTIAL).write_text((run / PARTIAL).read_text()[:200])
        assert _canary(run, resume=True, dry_run=True) == 0
        assert "nothing can be kept" in "".join(capsys.readouterr())
    finally:
        folder.write_plan(plan)


def test_some_stages_are_no_whole_canary(run: Path) -> None:
    assert _canary(run, only=("load",)) == 0
    assert _stages(run)["some_layers"]["skip"] == "not_asked"
    session = _session(run)
    session.allow_unverified = True
    canary = next(one for one in STAGES if one.name == "canary")
    found = session.folder.freshness(canary.record, inputs_of(canary, session))
    assert (found.fresh, found.reason) == (False, "changed since: stages")
    assert _canary(run, first="one_layer") == 0
    assert [_stages(run)[name]["status"] for name in NAMES] == ["pass"] * 3
    assert _stages(run)["load"]["kept"] is True


def test_a_failure_names_the_lock_that_passed_last_and_the_way_back(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _canary(run) == 0
    (line,) = read_history(run)
    assert (line.passed, line.whole, line.planted) == (True, True, False)
    assert (run / line.file).read_bytes() == (run / "ops.lock").read_bytes()
    _canary(run)
    assert len(read_history(run)) == 1, "a canary that was kept is no new one"
    assert last_good(run, line.device, line.model, other_than=line.lock) is None
    monkeypatch.setattr("day0.cli.canary.body_hash", lambda record: "sha256:another")
    monkeypatch.setattr(stage_10_load, "GATES", (Gate(metric="tensors", rule="<=", limit=0),))
    (run / "canary.json").unlink()
    capsys.readouterr()
    assert _canary(run) == 1
    said = capsys.readouterr().out
    assert f"back to it: cp {run / line.file} {run / 'ops.lock'} && day0 canary --run {run} --frozen" in said
    assert "next: day0 check --level model --run" in said
    failed = read_history(run)[-1]
    assert (failed.passed, failed.file) == (False, "") and failed.failed.startswith("load: tensors is ")


def test_a_history_that_was_cut_off_is_read_and_goes_on_in_a_new_line(run: Path) -> None:
    assert _canary(run, only=("load",)) == 0
    path = run / HISTORY
    whole = path.read_text()
    path.write_text(whole + whole[: len(whole) // 2])
    assert len(read_history(run)) == 1
    assert _canary(run, only=("one_layer",)) == 0
    lines = read_history(run)
    assert len(lines) == 2 and not lines[-1].whole and lines[-1].file == ""
    path.write_bytes(b"\xff\xfe{\n\n[]\n" + whole.encode())
    assert len(read_history(run)) == 1


def test_mistakes_are_the_users_to_repair_before_anything_runs(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    _counting(monkeypatch, stage_30_one_layer, calls)
    with pytest.raises(Day0Error, match="the canary of this run has no such stage"):
        _canary(run, only=("lod",))
    with pytest.raises(Day0Error, match="the lock is not verified"):
        commands.stage(name="canary", run=run, force=False, json=False)
    assert _canary(run, only=("some_layers",)) == 0
    other = run.parent / "other"
    other.mkdir(exist_ok=True)
    (file,) = (run / "reference").glob("some_layers-*.safetensors")
    data = file.read_bytes().replace(b"torch.float32", b"torch.float64")
    (other / file.name).write_bytes(data)
    (run / "canary.json").unlink()
    with pytest.raises(Day0Error, match="the reference belongs to another model: it differs in dtype"):
        _canary(run, only=("some_layers",), reference=other)
    assert calls == []


def test_the_figures_are_there_for_other_tools(run: Path) -> None:
    assert _canary(run, only=("load",)) == 0
    assert (
        'day0_canary_stage{model="toy",device="null",stage="load",status="pass"} 1.0'
        in (run / "canary.prom").read_text()
    )

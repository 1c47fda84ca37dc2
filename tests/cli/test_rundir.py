from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from day0.cli.rundir import RunFolder, write_atomically
from day0.codec import NewerRecordError
from day0.errors import Day0Error
from day0.playbook import ModelPlan, PhasePlan, Playbook, WorkloadPlan
from day0.records import Lock

LOCK = Lock(device="sim", namespace="base", model="sha256:00", entries=())


def test_freshness_says_why(run_folder: Path) -> None:
    folder = RunFolder(run_folder)
    with folder.held():
        assert folder.freshness(Lock, {"a": "1"}).reason == "there is no ops.lock yet"
        folder.write(LOCK, inputs={"a": "1", "b": "2"}, environment={})
        assert folder.freshness(Lock, {"a": "1", "b": "2"}).fresh
        changed = folder.freshness(Lock, {"a": "1", "b": "3"})
        assert (changed.fresh, changed.reason) == (False, "changed since: b")
        gone = folder.freshness(Lock, {"a": "1"})
        assert (gone.fresh, gone.reason) == (False, "changed since: b")


def test_a_damaged_record_is_stale_with_the_reason(run_folder: Path) -> None:
    folder = RunFolder(run_folder)
    with folder.held():
        folder.write(LOCK, inputs={}, environment={})
        path = run_folder / "ops.lock"
        path.write_text(path.read_text()[:50])
        found = folder.freshness(Lock, {})
    assert not found.fresh
    assert "cut off" in found.reason


def test_a_newer_record_is_not_overwritten(run_folder: Path) -> None:
    folder = RunFolder(run_folder)
    with folder.held():
        folder.write(LOCK, inputs={}, environment={})
        path = run_folder / "ops.lock"
        path.write_text(path.read_text().replace("day0.lock/1", "day0.lock/2"))
        with pytest.raises(NewerRecordError, match=r"day0\.lock/2"):
            folder.freshness(Lock, {})


def test_phases_come_back_in_the_order_in_which_they_were_asked_for(run_folder: Path) -> None:
    workload = WorkloadPlan(phases={"prefill": PhasePlan(tokens=4), "decode": PhasePlan(tokens=1, context=4)})
    plan = Playbook(schema_="day0.playbook/1", name="x", model=ModelPlan(source="toy"), workload=workload, device="")
    folder = RunFolder(run_folder)
    with folder.held():
        folder.write_plan(plan)
        found = folder.read_plan()
    assert found is not None
    assert list(found.workload.phases) == ["prefill", "decode"]


def test_two_processes_do_not_share_a_folder(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("day0.cli.rundir.PATIENCE_S", 0.1)
    with (
        RunFolder(run_folder).held(),
        pytest.raises(Day0Error, match="another day0 is at work"),
        RunFolder(run_folder).held(),
    ):
        pass


def test_workers_of_a_killed_run_are_waited_for(run_folder: Path) -> None:
    """They are forks and hold its lock until they are gone, which takes a moment longer than the kill."""
    held = f"import fcntl, time; file = open({str(run_folder / '.held')!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX)"
    text = f"{held}; print(flush=True); time.sleep(0.5)"
    run_folder.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None and worker.stdout.read(1)
        with RunFolder(run_folder).held():
            pass


def test_a_file_cannot_be_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Day0Error, match="cannot be used as a run folder"), RunFolder(tmp_path / "file").held():
        pass


WRITER = """
import sys
from pathlib import Path
from day0.cli.rundir import write_atomically
number = 0
while True:
    number += 1
    write_atomically(Path(sys.argv[1]), f"{number % 10}" * 200_000)
"""


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_atomically(path, "0" * 200_000)
    for _ in range(5):
        before = path.stat().st_mtime_ns
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) as writer:
            while path.stat().st_mtime_ns == before and writer.poll() is None:
                time.sleep(0.005)  # until it is in the middle of its writing
            writer.kill()
        assert writer.returncode == -signal.SIGKILL
        text = path.read_text()
        assert len(text) == 200_000
        assert len(set(text)) == 1


def test_leftovers_of_a_killed_writer_are_removed(run_folder: Path) -> None:
    run_folder.mkdir(parents=True)
    (run_folder / ".trace.json.abc.part").write_text("half")
    with RunFolder(run_folder).held():
        assert not list(run_folder.glob(".*.part"))

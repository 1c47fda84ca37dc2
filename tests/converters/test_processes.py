"""Files over processes: the same bytes as with one, and a process that dies, fails or is left alone costs no more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from day0.converters import processes
from day0.converters.convert import MANIFEST
from day0.converters.journal import JOURNAL
from day0.errors import Day0Error

pytestmark = [
    pytest.mark.skipif(not processes.can_fork(), reason="this system copies no processes"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@pytest.fixture
def source(kit: Any, tmp_path: Path) -> Path:
    tensors: dict[str, Any] = {}
    for layer in range(5):
        tensors |= kit.gpt_oss(1, 256, 64, seed=layer, name=f"model.layers.{layer}.mlp.experts")
    made: Path = kit.write(tmp_path / "s", tensors, shards=5)
    return made


def files(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def test_processes_give_the_same_bytes(kit: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.run(source, tmp_path / "one", "fp8")
    parent, real = os.getpid(), os.pwrite

    def never_here(file: int, data: Any, at: int) -> int:
        assert os.getpid() != parent, "a file was written by the process that asked"
        return real(file, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", never_here)
        kit.run(source, tmp_path / "three", "fp8", jobs=3)
    assert files(tmp_path / "three") == files(tmp_path / "one")


def killing(at: int) -> Any:
    """Kill the process that writes for the n-th time, counted in each."""
    real, parent, count = os.pwrite, os.getpid(), [0]

    def pwrite(file: int, data: Any, place: int) -> int:
        count[0] += 1
        if count[0] == at and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(file, data, place)

    return pwrite


@pytest.mark.parametrize("at", [1, 4, 9])
def test_a_killed_process_is_named_and_the_rest_goes_on(
    kit: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    target = tmp_path / "t"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", killing(at))
        with pytest.raises(Day0Error, match=r"was killed by signal 9 \(SIGKILL\)") as caught:
            kit.run(source, target, "fp8", jobs=2)
    assert caught.value.where.endswith(".safetensors")
    assert "run the same command to go on" in caught.value.hint
    assert not list(target.glob("*.part"))
    assert (target / JOURNAL).exists()
    kit.run(source, target, "fp8", jobs=2)
    kit.run(source, tmp_path / "whole", "fp8")
    assert files(target) == files(tmp_path / "whole")


def test_what_a_process_refuses_is_said_as_with_one(
    kit: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, data: Any, at: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    said = []
    for jobs in (1, 2):
        with pytest.raises(Day0Error) as caught:
            kit.run(source, tmp_path / f"t{jobs}", "fp8", jobs=jobs)
        said.append((Path(caught.value.where).suffix, caught.value.what, caught.value.hint))
    assert said[0] == said[1]


def test_a_mistake_of_ours_is_no_mistake_of_the_user(
    kit: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def wrong(file: int, data: Any, at: int) -> int:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(os, "pwrite", wrong)
    with pytest.raises(RuntimeError, match="ended with exit code 1"):
        kit.run(source, tmp_path / "t", "fp8", jobs=2)
    assert "ZeroDivisionError: planted" in capfd.readouterr().err


SLOW = """
import os, sys, time
from pathlib import Path
from day0.converters.convert import convert
from day0.converters.folder import open_folder
from day0.converters.plan import make_plan
from day0.converters.tiers.load import pick_tier
from day0.records.convert import ConversionParameters

source, target, told = (Path(one) for one in sys.argv[1:])
real = os.pwrite

def slow(file, data, at):
    with told.open("a") as log:
        log.write(f"{os.getpid()}\\n")
    time.sleep(0.2)
    return real(file, data, at)

os.pwrite = slow
convert(make_plan(open_folder(source), ConversionParameters(to="fp8"), jobs=2), target, pick_tier("eager"), jobs=2)
"""


def test_processes_end_with_who_started_them(kit: Any, source: Path, tmp_path: Path) -> None:
    target, told = tmp_path / "t", tmp_path / "pids"
    # A process of its own: a copy of this one would go on as a second runner of tests where something fails.
    command = [sys.executable, "-c", SLOW, str(source), str(target), str(told)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        until = time.monotonic() + 120.0
        while (not told.exists() or len(set(told.read_text().split())) < 2) and time.monotonic() < until:
            assert child.poll() is None, child.communicate()[1][-2000:]
            time.sleep(0.02)
        child.kill()
    writers = {int(pid) for pid in told.read_text().split()}
    assert len(writers) == 2
    while any(running(pid) for pid in writers) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(running(pid) for pid in writers)
    kit.run(source, target, "fp8", jobs=2)
    assert MANIFEST in files(target)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""`day0 doctor` where packages raise, crash, hang, lie and print: each is a line, and nothing stops it.

The command itself loads nothing heavy, so it starts cold: the warm server would load what is planted.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from day0.cli import doctor_machine
from day0.cli.doctor import _device, _extra
from day0.cli.doctor_ask import ask
from tests.flow.conftest import Done, is_running, run_day0

PLANTED = {
    "transformers": "raise RuntimeError('built for another torch\\x1b[2J')",
    "httpx2": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "vllm": "import sys; sys.exit(0)",
    "sglang": "import os; os._exit(7)",
    "ray": "print('x' * 100_000, flush=True)",
    "fla": "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])",
    "compressed_tensors": "raise BaseException",
    "PIL": "def",
}


def _plant(folder: Path, packages: dict[str, str]) -> None:
    for name, text in packages.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(text + "\n", encoding="utf-8")


def _found(done: Done) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(done.stdout)["findings"]}


def test_packages_that_are_broken_are_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(tmp_path, PLANTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run_day0("doctor", "--only", "extras", "--timeout", 300, "--json", cwd=tmp_path, cold=True)
    assert done.returncode == 0, "what is no part of the core does not stop day0"
    found = _found(done)
    status = {name: (one["status"], one["says"]) for name, one in found.items()}
    assert status["transformers"] == ("broken", "RuntimeError: built for another torch\x1b[2J")
    assert status["httpx2"] == ("broken", "the process was ended by SIGSEGV")
    assert status["vllm"] == ("broken", "the process ended with 0 before it answered")
    assert status["sglang"] == ("broken", "the process ended with 7 before it answered")
    assert status["ray"][0] == "works"
    assert status["fla-core"][0] == "works"
    assert status["compressed-tensors"] == ("broken", "BaseException")
    assert status["pillow"] == ("broken", "SyntaxError: invalid syntax")
    assert found["transformers"]["hint"] == "pip install 'day0[hf]'"
    assert found["ray"]["hint"] == ""
    assert "\x1b" not in done.stderr


def test_what_is_not_there_is_missing_with_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ask("extra", "no-such-package:no_such_module", limit_s=300)
    assert answer.data == {"missing": "no-such-package is not installed"}
    _plant(tmp_path, {name: "pass" for name in (*PLANTED, "triton") if name != "vllm"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run_day0("doctor", "--only", "extras", cwd=tmp_path, cold=True)
    assert done.stdout.count("missing ") == 1
    assert "pip install vllm" in done.stdout


@pytest.mark.parametrize(
    ("torch", "status", "says"),
    [
        ("raise ImportError('libtorch.so: cannot open shared object file')", "broken", "ImportError: libtorch.so"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "broken", "the process was ended by SIGILL"),
    ],
)
def test_without_torch_day0_cannot_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, status: str, says: str
) -> None:
    _plant(tmp_path, {"torch": torch})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    areas = ("--only", "core", "--only", "devices", "--only", "compiler")
    done = run_day0("doctor", *areas, "--timeout", 300, "--json", cwd=tmp_path, cold=True)
    assert done.returncode == 2
    found = _found(done)
    for name in ("torch", "sim", "torch.compile"):
        assert found[name]["status"] == status
        assert found[name]["says"].startswith(says)
    assert found["torch"]["hint"] == "pip install 'torch>=2.11'"
    assert json.loads(done.stdout)["works"] is False
    assert "day0 cannot work here" in done.stderr


def test_a_device_that_is_not_here_is_missing() -> None:
    [found] = _device("s5000", 300.0, asked=False)
    assert (found.status, found.says, found.needed) == ("missing", "torch_musa is not installed", False)


def test_the_simulated_device_works_and_one_that_is_asked_for_has_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _plant(tmp_path / "planted", {"torch_musa": "raise OSError('driver too old')"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "planted"))
    words = ("--only", "devices", "--device", "s5000", "--timeout", 300, "--json")
    done = run_day0("doctor", *words, cwd=tmp_path, cold=True)
    assert done.returncode == 2
    found = _found(done)
    assert found["sim"]["status"] == "works"
    assert found["s5000"]["status"] == "broken"
    assert "driver too old" in found["s5000"]["says"]


def test_a_plugin_that_does_not_load_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad_kernels.py").write_text("raise ValueError('no such symbol')\n")
    info = tmp_path / "bad_kernels-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-kernels\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[day0.implementations]\nbad = bad_kernels\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run_day0("doctor", "--only", "plugins", "--json", cwd=tmp_path, cold=True)
    found = _found(done)["bad-kernels"]
    assert done.returncode == 0
    assert found["status"] == "broken"
    assert "no such symbol" in found["says"]
    assert "--without bad-kernels" in found["hint"]


def test_a_package_that_hangs_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of its own: in a short one the others would not answer either where the machine is busy."""
    _plant(tmp_path, {"triton": "import time; time.sleep(600)"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    [found] = _extra("triton", 1.0)
    assert (found.status, found.says) == ("broken", "no answer after 1 s; it hangs")


def test_what_a_process_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends by itself, so that no limit of time has to be long enough for it to begin."""
    text = "import os, pathlib, time\nif pid := os.fork():\n    pathlib.Path('pid').write_text(str(pid))\n    os._exit(7)\n"
    _plant(tmp_path / "planted", {"forks": text + "time.sleep(600)"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "planted"))
    monkeypatch.chdir(tmp_path)
    assert "ended with 7" in ask("extra", "forks:forks", limit_s=300).why
    pid, until = int((tmp_path / "pid").read_text()), time.monotonic() + 60.0
    while is_running(pid):
        assert time.monotonic() < until, "it still runs"
        time.sleep(0.05)


def test_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    found = {one.name: one for one in doctor_machine.machine()}
    assert found.keys() == {"python", "disk", "memory", "terminal"}
    assert found["disk"].status == "works"
    monkeypatch.setattr(doctor_machine, "FREE_BYTES", 1 << 60)
    monkeypatch.setattr(doctor_machine, "AVAILABLE_BYTES", 1 << 60)
    found = {one.name: one for one in doctor_machine.machine()}
    assert found["disk"].status == found["memory"].status == "broken"
    assert found["memory"].hint


def test_an_area_that_nobody_knows(tmp_path: Path) -> None:
    done = run_day0("doctor", "--only", "device", cwd=tmp_path, cold=True)
    assert done.returncode == 2
    assert "did you mean devices?" in done.stderr


@pytest.mark.slow
def test_everything_works_here(tmp_path: Path) -> None:
    """Also that something is really compiled, which takes a compiler half a minute."""
    done = run_day0("doctor", "--timeout", 200, "--json", cwd=tmp_path, cold=True)
    assert done.returncode == 0
    assert _found(done)["torch.compile"]["status"] == "works"

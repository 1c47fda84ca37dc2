"""Ask a process of its own, with a limit of time: whatever a package does when it is imported, `day0 doctor` goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Answer", "ask"]

MAX_ANSWER_BYTES = 1 << 20
TAIL_BYTES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the process said, or why it said nothing."""

    data: dict[str, Any] | None
    why: str = ""
    """In one line: how it ended without an answer."""


def ask(part: str, argument: str, *, limit_s: float, environment: dict[str, str] | None = None) -> Answer:
    """Run one part of `doctor_child.py`. Never raises for what happens in it."""
    with tempfile.TemporaryDirectory(prefix="day0-doctor-") as name:
        file, log = Path(name) / "answer.json", Path(name) / "log"
        command = [sys.executable, "-P", "-m", "day0.cli.doctor_child", part, argument, str(file)]
        with log.open("wb") as said:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**_environment(), **(environment or {}), "TMPDIR": name},
                start_new_session=True,
            )
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return Answer(data=None, why=f"no answer after {limit_s:g} s; it hangs")
            finally:
                _end(process)
        return _read(file, log, code)


def _environment() -> dict[str, str]:
    """Return the environment, with the modules that this process sees."""
    paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path for path in paths if path))}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it with everything that it started."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(file: Path, log: Path, code: int) -> Answer:
    try:
        if file.stat().st_size <= MAX_ANSWER_BYTES:
            found = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(found, dict):
                return Answer(data=found)
    except (OSError, ValueError):
        pass  # no answer: the reason follows
    if code < 0:
        return Answer(data=None, why=f"the process was ended by {_name_of(-code)}")
    last = _last_line(log)
    return Answer(data=None, why=last if code and last else f"the process ended with {code} before it answered")


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip()[:300] if lines else ""

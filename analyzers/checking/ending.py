"""How a worker ended: what is known of its death, in words that are the same whenever it dies so."""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path

__all__ = ["death", "oom_kills"]

_NOT_A_PLACE = ("/torch/", "/ctypes/", "/day0/", "/multiprocessing/")


def death(code: int | None, log: Path, operator: str, *, out_of_memory: bool) -> str:
    """Return how a process with this exit code died, in which operator, at which line, and its last words."""
    if code is None:
        how = "it closed the pipe to its parent"
    elif code >= 0:
        how = f"it ended the process with exit code {code}"
    else:
        how = f"the process died of {_signal_name(-code)}"
    if out_of_memory:
        how = "out of memory: the system killed the process"
    lines = _tail(log)
    place, said = _place(lines), _said(lines)
    where = f" in {operator}" if operator else ""
    return how + where + (f", at {place}" if place else "") + (f": {said}" if said else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(log: Path) -> list[str]:
    try:
        return log.read_bytes()[-16384:].decode(errors="replace").splitlines()
    except OSError:
        return []


def _place(lines: list[str]) -> str:
    """Return the innermost line of Python that is not torch's or day0's own, by the report of faulthandler."""
    for line in lines:
        found = re.match(r'  File "([^"]+)", line (\d+) in', line)
        if found and not any(part in found[1] for part in _NOT_A_PLACE) and "/lib/python" not in found[1]:
            return f"{Path(found[1]).name}:{found[2]}"
    return ""


def _said(lines: list[str]) -> str:
    """Return the last line before Python's report; addresses and numbers of processes are left out."""
    fatal = next((place for place, line in enumerate(lines) if line.startswith("Fatal Python error")), len(lines))
    spoken = [line.strip() for line in lines[:fatal] if line.strip()]
    return re.sub(r"0x[0-9a-f]+", "0x…", spoken[-1])[:200] if spoken else ""


def oom_kills() -> int:
    """Return how often the system has killed a process for memory; 0 where it does not tell."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("oom_kill ")))
    return 0

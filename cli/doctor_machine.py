"""What `day0 doctor` says of the machine: disk, memory, terminal."""

from __future__ import annotations

import locale
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from day0.cli.doctor_words import Finding

__all__ = ["machine"]

FREE_BYTES = 1 << 30
"""Less is little: a checkpoint that is converted takes what it has once more."""
AVAILABLE_BYTES = 1 << 30
"""The demo takes some 600 MB."""
SLOW_FSYNC_S = 0.1
_WRITES = 5
_BLOCK = 1 << 20


def machine() -> list[Finding]:
    """Look at Python, disk, memory and terminal."""
    return [_python(), _disk(Path.cwd()), _memory(), _terminal()]


def _python() -> Finding:
    says = f"{platform.python_implementation()} at {sys.executable}, {os.cpu_count()} cores, {platform.platform()}"
    return Finding(area="machine", name="python", status="works", version=platform.python_version(), says=says)


def _disk(folder: Path) -> Finding:
    """Free space, and how long the disk takes until something is on it: records are written with fsync."""
    try:
        free, seconds = shutil.disk_usage(folder).free, _fsync_s(folder)
    except OSError as error:
        says = f"{folder} cannot be written to: {error.strerror}"
        return Finding(area="machine", name="disk", status="broken", says=says, hint="work in another folder")
    says = f"{free / 2**30:,.1f} GiB free in this folder, {seconds * 1000:.1f} ms until 1 MiB is on the disk"
    if free < FREE_BYTES:
        return Finding(
            area="machine", name="disk", status="broken", says=says, hint="make room, or name --run elsewhere"
        )
    hint = "slow: checks write after each case; name --run on a local disk" if seconds > SLOW_FSYNC_S else ""
    return Finding(area="machine", name="disk", status="works", says=says, hint=hint)


def _fsync_s(folder: Path) -> float:
    block, times = os.urandom(_BLOCK), []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_WRITES):
            began = time.perf_counter()
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def _memory() -> Finding:
    available = _available_bytes()
    if available is None:
        return Finding(area="machine", name="memory", status="works", says="the system does not say how much there is")
    says = f"{available / 2**30:,.1f} GiB available"
    little = available < AVAILABLE_BYTES
    hint = "end other programs: the demo takes some 600 MB" if little else ""
    return Finding(area="machine", name="memory", status="broken" if little else "works", says=says, hint=hint)


def _available_bytes() -> int | None:
    """Return what the system says is available, or what is left of the container's limit where that is less."""
    found: list[int] = []
    for line in _text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    limit, used = (_text(Path("/sys/fs/cgroup") / name).strip() for name in ("memory.max", "memory.current"))
    if limit.isdecimal() and used.isdecimal():
        found.append(max(0, int(limit) - int(used)))
    return min(found) if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _terminal() -> Finding:
    size = shutil.get_terminal_size()
    kind = "a terminal" if sys.stdout.isatty() else "no terminal: no colours and no progress"
    encoding = (getattr(sys.stdout, "encoding", "") or locale.getpreferredencoding(False)).lower()
    says = f"{kind}, {size.columns} columns, {encoding}"
    if encoding.replace("-", "") != "utf8":
        hint = "export LC_ALL=C.UTF-8, or PYTHONUTF8=1"
        return Finding(area="machine", name="terminal", status="broken", says=says, hint=hint)
    return Finding(area="machine", name="terminal", status="works", says=says)

"""What a call leaves in the process beside its result: text on the terminal, child processes, threads."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Leftovers", "children_of"]

MOST_TEXT = 1 << 16


@dataclass(kw_only=True, slots=True)
class Leftovers:
    """Looks at a process whose output goes into a file. Without that file only threads and children are seen."""

    log: Path | None = None
    threads: frozenset[int] = field(default_factory=lambda: _threads())

    def collect(self) -> tuple[str, ...]:
        """Return what was left since the last time, in words, and clean up."""
        return (*self._printed(), *self._closed(), *_children(), *self._new_threads())

    def _closed(self) -> Iterator[str]:
        """Give the process its output back where a kernel has closed it or sent it elsewhere."""
        if self.log is None:
            return
        wanted = self.log.stat().st_ino
        lost = [number for number in (1, 2) if _inode(number) != wanted]
        if lost:
            file = os.open(self.log, os.O_WRONLY | os.O_APPEND)
            for number in lost:
                os.dup2(file, number)
            if file not in lost:
                os.close(file)
            yield "it closed or moved standard output"

    def _printed(self) -> Iterator[str]:
        if self.log is None:
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError, OSError):  # a kernel may have closed it
                stream.flush()
        text = self.log.read_bytes()[:MOST_TEXT].decode(errors="replace") if self.log.stat().st_size else ""
        if text:
            os.truncate(self.log, 0)
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if lines:
                yield f"it printed {len(lines)} {'line' if len(lines) == 1 else 'lines'}: {lines[0][:120]}"

    def _new_threads(self) -> Iterator[str]:
        now = _threads()
        new = now - self.threads
        self.threads = now
        if new:
            yield f"it left {len(new)} {'thread' if len(new) == 1 else 'threads'} running"


def _inode(number: int) -> int:
    try:
        return os.fstat(number).st_ino
    except OSError:
        return 0


def _threads() -> frozenset[int]:
    return frozenset(one.ident for one in threading.enumerate() if one.ident is not None)


def _children() -> Iterator[str]:
    count = 0
    with contextlib.suppress(ChildProcessError):  # there is none, as nearly always
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            count += pid != 0
            if pid == 0:
                for child in children_of(os.getpid()):
                    count += 1
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                        os.waitpid(child, 0)
    if count:
        yield f"it left {count} child {'process' if count == 1 else 'processes'}, ended now"


def children_of(pid: int) -> tuple[int, ...]:
    """Return the processes that a process has started and that still run; empty where the system does not tell."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(one) for one in (task / "children").read_text(encoding="ascii").split()]
    return tuple(found)

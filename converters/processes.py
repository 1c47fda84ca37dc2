"""Files over processes: each is a copy of this one, writes whole files, and may die without the others.

A copy has what its parent has open, the journal's lock too: as long as one of them writes, nobody else may begin.
Whoever is told to stop does so at its next tile and leaves no half file.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from day0.converters.shard import Stopped
from day0.converters.verdict import Verdict
from day0.converters.writer import PART
from day0.errors import Day0Error

__all__ = ["can_fork", "write_in_processes"]

STOP_S = 20.0
"""How long a copy that is told to stop may take for the tile that it is at."""

Verdicts = dict[str, Verdict]
Write = Callable[[str, Callable[[int], None]], Verdicts]
"""Writes the file of a name and returns its verdicts; tells how many bytes of the source are done."""


def can_fork() -> bool:
    """Say whether this system copies processes."""
    return "fork" in multiprocessing.get_all_start_methods()


def write_in_processes(
    names: Sequence[str],
    folder: Path,
    write: Write,
    jobs: int,
    *,
    step: Callable[[str, int], None],
    finished: Callable[[str, Verdicts], None],
) -> None:
    """Write the files of these names in `jobs` processes; `step` and `finished` are called here, as it goes on.

    Raises Day0Error: what a process raised, or that one was killed. What was finished before stays.
    """
    waiting = deque(names)
    with _copies(min(jobs, len(names)), folder, write) as copies:
        for copy in copies:
            copy.give(waiting)
        while any(copy.name for copy in copies):
            for copy in _ready(copies):
                _hear(copy, step, finished)
                copy.give(waiting)


def _hear(copy: _Copy, step: Callable[[str, int], None], finished: Callable[[str, Verdicts], None]) -> None:
    message = copy.receive()
    if "step" in message:
        step(copy.name, message["step"])
    elif "error" in message:
        raise Day0Error(**message["error"])
    else:
        name, copy.name = copy.name, ""
        finished(name, {weight: Verdict(**one) for weight, one in message["verdicts"].items()})


@dataclass(kw_only=True, slots=True)
class _Copy:
    """One process, and the file that it writes."""

    process: BaseProcess
    link: Connection
    name: str = ""

    def give(self, waiting: deque[str]) -> None:
        """Hand it the next file, if it has none."""
        if not self.name and waiting:
            self.name = waiting.popleft()
            with contextlib.suppress(OSError):  # it is dead, which the next look will find
                self.link.send(self.name)

    def receive(self) -> dict[str, Any]:
        """Return its next message. Raises Day0Error if it has died."""
        try:
            message: dict[str, Any] = self.link.recv()
        except (EOFError, OSError):
            self.process.join(5.0)
            code = self.process.exitcode
            if code is None or code >= 0:  # it has said why, and that is no user's mistake
                raise RuntimeError(f"{self.name}: the process that wrote it ended with exit code {code}") from None
            names = {int(one): one.name for one in signal.Signals}
            what = f"the process that wrote it was killed by signal {-code} ({names.get(-code, 'unknown')})"
            hint = "run the same command to go on, with fewer --jobs if memory ran out; what is finished stays"
            raise Day0Error(self.name, what, hint=hint) from None
        return message


def _ready(copies: Sequence[_Copy]) -> list[_Copy]:
    """Wait until some have something to say, or have died; those that have nothing to do are not asked."""
    by_link: dict[Any, _Copy] = {}
    for copy in copies:
        if copy.name:
            by_link |= {copy.link: copy, copy.process.sentinel: copy}
    return list({id(copy): copy for copy in (by_link[link] for link in wait(list(by_link)))}.values())


@contextmanager
def _copies(count: int, folder: Path, write: Write) -> Iterator[list[_Copy]]:
    context = multiprocessing.get_context("fork")
    # Memory of both, and no lock: who is killed cannot take it along.
    stop = mmap.mmap(-1, 1)
    copies: list[_Copy] = []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, write, stop, os.getpid()))
            process.start()
            theirs.close()
            copies.append(_Copy(process=process, link=ours))
        yield copies
    finally:
        stop[0] = 1
        for copy in copies:
            _end(copy, folder)
        stop.close()


def _end(copy: _Copy, folder: Path) -> None:
    with contextlib.suppress(OSError):
        copy.link.send("")
    # Read to the end, or it could not write its last words.
    while copy.process.is_alive() and wait([copy.link, copy.process.sentinel], timeout=STOP_S):
        try:
            copy.link.recv()
        except (EOFError, OSError):
            break
    copy.process.join(1.0)
    copy.process.kill()
    copy.process.join()
    copy.process.close()
    copy.link.close()
    if copy.name:
        (folder / (copy.name + PART)).unlink(missing_ok=True)


# ----------------------------------------------------------------------------------------------- in a copy


def _serve(link: Connection, write: Write, stop: mmap.mmap, parent: int) -> None:
    _settle(parent)

    def step(count: int) -> None:
        if stop[0]:
            raise Stopped
        link.send({"step": count})

    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError, Stopped):
        while name := link.recv():
            try:
                verdicts = {weight: asdict(one) for weight, one in write(name, step).items()}
                link.send({"verdicts": verdicts})
            except Day0Error as error:
                facts = {"where": error.where, "what": error.what, "facts": error.facts, "hint": error.hint}
                link.send({"error": facts})


def _settle(parent: int) -> None:
    """End with the parent, leave Ctrl-C to it, and use one thread: a copy has none of its parent's."""
    with contextlib.suppress(AttributeError, OSError):  # Linux only
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it died before we asked to be told
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)

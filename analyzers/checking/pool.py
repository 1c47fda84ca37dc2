"""Workers as the run sees them: cases are streamed to them, and one that dies is replaced and costs one case.

A case whose worker died is run once more, alone in a fresh one: a crash may be the late effect of an earlier case.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from day0.analyzers.checking.board import Board
from day0.analyzers.checking.ending import death, oom_kills
from day0.analyzers.checking.limits import Limits
from day0.analyzers.checking.setting import Loaded, Setting, warm
from day0.analyzers.checking.worker import Place, serve_forked, serve_spawned
from day0.analyzers.resident import resident
from day0.errors import Day0Error

__all__ = ["Answer", "Job", "Pool", "starter"]

START_S = 300.0
"""For the start of a worker: importing torch, opening the device."""
TICK_S = 0.1
AHEAD = 2
"""Cases that a worker holds: it goes on with the second while its parent notes the first."""
MOST_ANSWER = 64 << 20
MOST_RETRIES = 3
"""Of one implementation: when so many of its cases have ended a process, nobody else has to be suspected."""

Start = Callable[[Connection, Place], BaseProcess]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One question, its name for people, and whose code runs."""

    question: dict[str, Any]
    name: str
    blame: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What became of a job: a message, or how the worker ended in it."""

    job: Job
    message: dict[str, Any] | None
    kind: str = ""
    """`crashed`, `hung`, or `slow` where it was the reference that did not end."""
    reason: str = ""
    note: str = ""


def starter(loaded: Loaded, setting: Setting, *, fork: bool | None = None) -> Start:
    """Return how workers are started: copies of this process where the device allows it, else fresh ones.

    They are spread over the devices of the type, unless the profile names one of them.
    """
    named = ":" in setting.profile.torch_device

    def at(place: Place) -> Place:
        return replace(place, device=None) if named else place

    if loaded.device.type in ("cpu", "sim") if fork is None else fork:
        warm()
        forked = multiprocessing.get_context("fork")
        return lambda link, place: forked.Process(target=serve_forked, args=(link, loaded, at(place)))
    # Most devices cannot be used in a copy of a process that has opened them.
    spawned, text = multiprocessing.get_context("spawn"), setting.model_dump_json(by_alias=True)
    return lambda link, place: spawned.Process(target=serve_spawned, args=(link, text, at(place)))


class Pool:
    """Some workers in a folder of their own, which is emptied when they end."""

    def __init__(self, start: Start, folder: Path, limits: Limits, workers: int = 1) -> None:
        self.limits, self.folder = limits, folder
        self.notes: tuple[str, ...] = ()
        self.replaced = 0
        self._start, self._count = start, workers
        self._workers: list[_Worker] = []
        self._deaths: Counter[str] = Counter()
        self._numbers = iter(range(1 << 30))

    def __enter__(self) -> Self:
        shutil.rmtree(self.folder, ignore_errors=True)  # of a run that was killed
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._workers = [self._new(0)]
            self.notes = self._workers[0].ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for worker in self._workers:
            worker.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, job: Job) -> Answer:
        """Ask one question and wait for what becomes of it."""
        return next(iter(self.run([job])))

    def run(self, jobs: Sequence[Job]) -> Iterator[Answer]:
        """Yield what becomes of each job, in the order in which they end."""
        waiting, left = deque(jobs), len(jobs)
        while len(self._workers) < min(self._count, len(jobs)):
            self._workers.append(self._new(len(self._workers)))
        while left:
            for worker in self._workers:
                worker.feed(waiting)
            for answer in self._turn(waiting):
                left -= 1
                yield answer

    def _turn(self, waiting: deque[Job]) -> Iterator[Answer]:
        """Wait for a moment; yield answers and endings."""
        by_link: dict[Any, _Worker] = {}
        for worker in self._workers:
            by_link.update(dict.fromkeys(worker.links, worker))
        ready = wait(list(by_link), timeout=TICK_S)
        for worker in dict.fromkeys(by_link[link] for link in ready):
            yield from self._received(worker, waiting)
        for worker in list(self._workers):
            ending = worker.overdue(self.limits)
            if ending is not None:
                yield from self._ended(worker, ending, waiting)

    def _received(self, worker: _Worker, waiting: deque[Job]) -> Iterator[Answer]:
        message, ending = worker.receive()
        if message is None:
            yield from self._ended(worker, ending, waiting)
        elif "notes" in message or "where" in message:
            worker.greet(message)
        else:
            yield worker.answered(message)
            if message.get("broken"):
                waiting.extendleft(reversed(worker.outstanding))
                self._replace(worker)

    def _ended(self, worker: _Worker, ending: _Ending, waiting: deque[Job]) -> Iterator[Answer]:
        """Blame the case in flight, unless it may have been an earlier one: then it is run again first, alone."""
        jobs, alone, retried = list(worker.outstanding), worker.answers == 0, worker.retried
        if not jobs:
            if worker.greeted is None:
                raise Day0Error("check", f"a worker ended before it had a case: {ending.reason}", hint="run it again")
            self._replace(worker)  # it died of something that an answered case has left behind
            return
        job, rest = jobs[0], jobs[1:]
        waiting.extendleft(reversed(rest))
        fresh = self._replace(worker)
        self._deaths[job.blame] += 1
        if alone or ending.kind == "slow" or self._deaths[job.blame] > MOST_RETRIES:
            first = f"in the first run: {retried.reason}" if retried and retried.reason != ending.reason else ""
            yield Answer(job=job, message=None, kind=ending.kind, reason=ending.reason, note=first)
        else:
            fresh.retry(job, ending)

    def _replace(self, worker: _Worker) -> _Worker:
        worker.end()
        self.replaced += 1
        place = self._workers.index(worker)
        fresh = self._workers[place] = self._new(place)
        return fresh

    def _new(self, device: int) -> _Worker:
        return _Worker(self._start, self.folder, next(self._numbers), device)

    @property
    def devices(self) -> tuple[int | None, ...]:
        """On which device of several each worker is; None before it has said so."""
        return tuple(worker.device for worker in self._workers)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ending:
    kind: str
    reason: str


class _Worker:
    """One process, with what it was asked and has not answered."""

    def __init__(self, start: Start, folder: Path, number: int, device: int) -> None:
        self.log, path = folder / f"{number}.log", folder / f"{number}.board"
        self.board = Board(path)
        self.outstanding: deque[Job] = deque()
        self.answers = 0
        self.greeted: tuple[str, ...] | None = None
        self.device: int | None = None
        self.retried: _Ending | None = None
        """Set while the case in flight is one that ended another worker."""
        self._next_look = 0.0
        self._first_bytes = 0
        self._kills = oom_kills()
        self._began = time.monotonic()
        self._link, theirs = multiprocessing.Pipe()
        self._process = start(theirs, Place(log=str(self.log), board=str(path), parent=os.getpid(), device=device))
        self._process.start()
        theirs.close()  # else its end would never be seen
        # Children of a kernel hold the pipe open, so the death of the process itself is waited for.
        self._death = os.pidfd_open(self._process.pid or 0) if hasattr(os, "pidfd_open") else None

    @property
    def links(self) -> list[Any]:
        """What to wait for."""
        return [self._link, *([self._death] if self._death is not None else [])]

    def feed(self, waiting: deque[Job]) -> None:
        """Hand out cases, a few ahead; one that is run again is alone."""
        while waiting and self.greeted is not None and self.retried is None and len(self.outstanding) < AHEAD:
            self._send(waiting.popleft())

    def retry(self, job: Job, ending: _Ending) -> None:
        """Let it run a case that ended another worker, before anything else."""
        self.retried = ending
        self._send(job)

    def _send(self, job: Job) -> None:
        self.outstanding.append(job)
        with contextlib.suppress(OSError):  # it is dead, which the next look will find
            self._link.send_bytes(json.dumps(job.question).encode())

    def ready(self) -> tuple[str, ...]:
        """Wait until it has begun and return its notes. Raises Day0Error if it cannot."""
        if not self._link.poll(START_S):
            raise Day0Error("check", f"a worker did not begin within {START_S:g} s", hint="see the device's driver")
        message, ending = self.receive()
        if message is None:
            raise Day0Error("check", f"a process that opens the device ends badly: {ending.reason}", hint="see its log")
        self.greet(message)
        return self.greeted or ()

    def greet(self, message: dict[str, Any]) -> None:
        """Take its first message. Raises Day0Error with what kept it from working."""
        if "where" in message:
            raise Day0Error(message["where"], message["what"], facts=tuple(message["facts"]), hint=message["hint"])
        self.greeted, self.device = tuple(message["notes"]), message.get("device")
        # It says itself what it began with: the first look from here may come after a case has taken its memory.
        self._first_bytes = message["bytes"]

    def receive(self) -> tuple[dict[str, Any] | None, _Ending]:
        """Return the next message, or None and how it ended."""
        try:
            if self._link.poll(0):
                message = json.loads(self._link.recv_bytes(MOST_ANSWER))
                if isinstance(message, dict):
                    return message, _Ending(kind="", reason="")
                raise ValueError(message)
            return None, self._ending()
        except (EOFError, OSError):
            return None, self._ending()
        except ValueError:
            return None, _Ending(
                kind="crashed", reason="something else than an answer was written into the worker's pipe"
            )

    def answered(self, message: dict[str, Any]) -> Answer:
        """Return the answer to the oldest question."""
        job, retried = self.outstanding.popleft(), self.retried
        self.answers, self.retried = self.answers + 1, None
        if retried is None:
            return Answer(job=job, message=message)
        return Answer(job=job, message=message, kind=retried.kind, reason=retried.reason)

    def overdue(self, limits: Limits) -> _Ending | None:
        """Say whether it has to be ended, and why: it takes too long, or too much memory."""
        now = time.monotonic()
        if self.greeted is None:
            late = now - self._began > START_S
            return _Ending(kind="crashed", reason=f"it did not begin within {START_S:g} s") if late else None
        if now < self._next_look:
            return None
        self._next_look = now + TICK_S
        if self.outstanding and self.board.late and not self._link.poll(0):
            return self._too_late(limits)
        return self._too_large(limits)

    def _too_late(self, limits: Limits) -> _Ending:
        where, operator = self.board.where, self.board.last_operator
        if where == "device":
            limit = f" within {limits.case_timeout_s:g} s" if limits.case_timeout_s is not None else ""
            return _Ending(kind="hung", reason=f"it did not end{limit}, in {operator}; the process was killed")
        return _Ending(kind="slow", reason=f"its {where} on the CPU did not end in the time that was allowed")

    def _too_large(self, limits: Limits) -> _Ending | None:
        size = resident(self._process.pid or 0)
        if size - self._first_bytes <= limits.host:
            return None
        most = limits.host / 2**30
        where = f" in {self.board.last_operator}" if self.board.last_operator else ""
        return _Ending(kind="crashed", reason=f"out of memory: it took more than {most:.1f} GiB of the host{where}")

    def _ending(self) -> _Ending:
        self._process.join(5.0)
        operator = self.board.last_operator if self.board.where == "device" else ""
        killed = self._process.exitcode == -signal.SIGKILL and oom_kills() > self._kills
        reason = death(self._process.exitcode, self.log, operator, out_of_memory=killed)
        if self.board.where in ("reference", "inputs"):
            reason = f"{reason} while its {self.board.where} was computed on the CPU"
        return _Ending(kind="crashed", reason=reason)

    def end(self) -> None:
        """Kill it with all that it has started, and take its files away."""
        with contextlib.suppress(OSError, TypeError):  # the group begins a moment after the process
            os.killpg(self._process.pid, signal.SIGKILL)  # type: ignore[arg-type]  # it was started
        self._process.kill()
        self._process.join()
        self._process.close()
        self._link.close()
        if self._death is not None:
            os.close(self._death)
        self.board.close()
        self.log.unlink(missing_ok=True)

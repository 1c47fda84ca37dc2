"""The process in which cases run: it answers one question after the other, and may die of any of them.

Questions and answers are JSON, one message each: `{"case": KEY}`, or `{"reproducer": FOLDER}`, or
`{"write": KEY, "folder": FOLDER, "result": {...}}`.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import resource
import signal
import sys
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from day0.analyzers.checking.board import Board, Phase
from day0.analyzers.checking.case import Bench, judge_case
from day0.analyzers.checking.leftovers import Leftovers
from day0.analyzers.checking.outcome import Outcome, first_line
from day0.analyzers.checking.setting import Loaded, Setting, load, warm
from day0.analyzers.checking.watch import watched
from day0.analyzers.resident import resident
from day0.devices.open import device_index, use_device
from day0.devices.sim.planting import PLANTED, Planting
from day0.errors import USER_ERRORS, Day0Error
from day0.records import CaseResult
from day0.registry.dispatch import activate

__all__ = ["Place", "serve_forked", "serve_spawned"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a worker writes: its output, and what its parent sees."""

    log: str
    board: str
    parent: int
    device: int | None = None
    """On which device of several its cases run, counted round; None: on the one that the profile names."""


def serve_spawned(connection: Connection, text: str, place: Place) -> None:
    """Begin in a process that knows nothing, from the text of a `Setting`."""
    _settle(place)
    try:
        loaded = load(Setting.model_validate_json(text))
        warm()
    except Day0Error as error:
        _refuse(connection, error)
        return
    _serve(connection, loaded, place)


def serve_forked(connection: Connection, loaded: Loaded, place: Place) -> None:
    """Begin in a copy of a process in which everything is open."""
    _settle(place)
    _serve(connection, loaded, place)


def _settle(place: Place) -> None:
    """Make the process one that may die: it ends with its parent, is killed first, and writes into a file."""
    os.setsid()
    with contextlib.suppress(AttributeError, OSError):  # Linux only: elsewhere the closed pipe ends it
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != place.parent:
        os._exit(1)  # it died before we asked to be told
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    file = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    # Streams of its own: those of the parent may belong to somebody who caught them.
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - for good
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - for good
    faulthandler.enable(file=file, all_threads=False)
    # A copy of a process cannot use its pool of threads; and on one thread sums come in one order.
    torch.set_num_threads(1)


def _refuse(connection: Connection, error: Day0Error) -> None:
    facts = {"where": error.where, "what": error.what, "facts": error.facts, "hint": error.hint}
    connection.send_bytes(json.dumps(facts).encode())


def _serve(connection: Connection, loaded: Loaded, place: Place) -> None:
    # All that is loaded stays until the process ends: looking through it for garbage takes longer than many cases do.
    gc.freeze()
    loaded = replace(loaded, device=use_device(loaded.device, place.device))
    with contextlib.ExitStack() as stack:
        try:
            active = stack.enter_context(activate(loaded.lock, loaded.device, watched(loaded.implementations)))
        except Day0Error as error:
            _refuse(connection, error)
            return
        teller = _Teller(Path(place.board))
        bench = Bench(device=loaded.device, active=active, lock=loaded.lock, limits=loaded.limits, teller=teller)
        worker = _Worker(bench=bench, loaded=loaded, leftovers=Leftovers(log=Path(place.log)))
        greeting = {"notes": active.notes, "device": device_index(loaded.device), "bytes": resident(os.getpid())}
        connection.send_bytes(json.dumps(greeting).encode())
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            while True:
                answer = worker.answer(json.loads(connection.recv_bytes()))
                connection.send_bytes(json.dumps(answer).encode())


class _Teller(Board):
    """A board that only the worker itself writes to, not a copy that a kernel has made of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._pid = os.getpid()

    def phase(self, name: Phase, seconds: float) -> None:
        """Enter a phase, unless this is a copy: that ends here, or it would answer too."""
        if os.getpid() != self._pid:
            os._exit(0)
        super().phase(name, seconds)


@dataclass(kw_only=True, slots=True)
class _Worker:
    bench: Bench
    loaded: Loaded
    leftovers: Leftovers

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        if "case" in question:
            return self._case(question["case"])
        from day0.analyzers.checking import reproducer  # needed for a few cases, in few runs

        if "write" in question:
            case = self.loaded.cases[question["write"]]
            result = CaseResult.model_validate_json(question["result"])
            return {
                "left_out": reproducer.write(Path(question["folder"]), case, result, self.loaded, question["extra"])
            }
        return self._judge(lambda: reproducer.judge(Path(question["reproducer"]), self.bench))

    def _case(self, key: str) -> dict[str, Any]:
        case = self.loaded.cases[key]
        return self._judge(lambda: judge_case(case, self.bench), Outcome(case=case))

    def _judge(self, run: Any, outcome: Outcome | None = None) -> dict[str, Any]:
        plantings = _fresh_plantings()
        try:
            result = run()
        except BaseException as error:
            if outcome is None:
                raise
            result = outcome.crashed(first_line(error))
        notes = self.leftovers.collect()
        result = result.model_copy(update={"notes": (*result.notes, *notes)})
        reached = {one.name: dict(one.reached) for one in plantings if one.reached}
        return {
            "result": result.model_dump_json(),
            "reached": reached,
            "broken": result.status == "crashed" and not _is_well(self.bench.device),
        }


def _fresh_plantings() -> tuple[Planting, ...]:
    """Return the planted faults with nothing remembered: what a case gives must not depend on which came before."""
    found = {one.name: one for standing in (PLANTED.get() or {}).values() for one in standing}
    for one in found.values():
        one.memory.clear()
        one.reached.clear()
    return tuple(found.values())


def _is_well(device: torch.device) -> bool:
    """Say whether the device still computes: after some errors it does not, until the process ends."""
    if device.type in ("cpu", "sim"):
        return True
    try:
        return bool(torch.equal(torch.ones(4, device=device).clone().cpu(), torch.ones(4)))
    except USER_ERRORS:
        return False

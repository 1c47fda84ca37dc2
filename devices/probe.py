"""Ask a device what it can do, in worker processes: a crash or a hang there is recorded, and not suffered here."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from day0.devices.probe_record import DeviceFacts, Measured, ProbedCall, ProbedDtype, Tried
from day0.devices.profile import DTYPES, DeviceProfile
from day0.errors import Day0Error
from day0.records import Signature

__all__ = ["ProbeOptions", "Probed", "probe"]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeOptions:
    """How to probe."""

    imports: tuple[str, ...] = ()
    """Modules, or Python files, that each worker imports."""
    timeout_s: float = 30.0
    """For one question: after that the worker is killed, and the call counts as hung."""
    start_s: float = 300.0
    """For the start of a worker: importing torch and opening the device."""
    max_bytes: int = 256 << 20
    """Larger calls are skipped."""
    rates: bool = True
    """Whether to measure rates by the clock. On a simulated device they would be the host's."""
    measure_s: float = 180.0
    """For measuring."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """Everything that the device answered."""

    facts: DeviceFacts
    dtypes: tuple[ProbedDtype, ...]
    calls: tuple[ProbedCall, ...]
    measured: Measured
    restarts: int
    """How often a worker had to be replaced."""


def probe(
    profile: DeviceProfile,
    signatures: Sequence[Signature],
    options: ProbeOptions,
    progress: Progress = lambda *_: None,
) -> Probed:
    """Ask about every dtype, then about every signature, one question at a time.

    Raises Day0Error if the device cannot be opened, or if opening it kills or blocks the worker.
    """
    questions: list[tuple[str, dict[str, Any]]] = [(f"dtype {name}", {"dtype": name}) for name in DTYPES]
    questions += [(one.op, {"call": one.model_dump(mode="json")}) for one in signatures]
    with Worker(profile, options) as worker:
        answers = list(_ask_all(worker, questions, progress))
        progress("rates", len(questions), len(questions))
        measured = _measure(worker, answers, options)
        facts, restarts = worker.facts, worker.starts - 1
    count = len(DTYPES)
    return Probed(
        facts=facts,
        measured=measured,
        dtypes=tuple(ProbedDtype(name=name, result=one) for name, one in zip(DTYPES, answers[:count], strict=True)),
        calls=tuple(ProbedCall(signature=s, result=one) for s, one in zip(signatures, answers[count:], strict=True)),
        restarts=restarts,
    )


def _ask_all(worker: Worker, questions: Sequence[tuple[str, dict[str, Any]]], progress: Progress) -> Iterable[Tried]:
    for number, (title, question) in enumerate(questions):
        progress(title, number, len(questions))
        yield worker.ask(question)


def _measure(worker: Worker, answers: Sequence[Tried], options: ProbeOptions) -> Measured:
    """Measure last, when everything is warm; a device that dies of it keeps the answers that it gave."""
    computes = [name for name, one in zip(DTYPES, answers, strict=False) if one.way == "native"]
    found: dict[str, Any] = {}
    for kind in ("habits", "rates") if options.rates else ("habits",):
        found |= worker.measure({"measure": kind, "dtypes": computes})
    return Measured.model_validate(found)


class Worker:
    """A process that opens the device and answers. It is started when it is asked, and again after it died."""

    def __init__(self, profile: DeviceProfile, options: ProbeOptions) -> None:
        self.options = options
        self.starts = 0
        self._profile = profile.model_dump(mode="json", by_alias=True)
        # Spawned, not forked: a forked process cannot open most devices, and shares locks with this one.
        self._context = multiprocessing.get_context("spawn")
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._facts: DeviceFacts | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="day0-probe-")

    def __enter__(self) -> Self:
        try:
            self._start()
        except Day0Error:
            self._folder.cleanup()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end()
        self._folder.cleanup()

    @property
    def facts(self) -> DeviceFacts:
        """What the device says of itself."""
        assert self._facts is not None  # noqa: S101 - set by the first start, which raises otherwise
        return self._facts

    def ask(self, question: dict[str, Any]) -> Tried:
        """Ask one question. Death, silence and a device that is out of order afterwards are answers too."""
        if self._process is None:
            self._start()
        message, ending = self._exchange(question, self.options.timeout_s)
        if message is None:
            self._end()
            return ending
        tried = Tried.model_validate(message)
        if not tried.broken:
            return tried
        self._end()
        return tried.model_copy(update={"status": "crashed", "reason": f"{tried.reason}; the device was dead after it"})

    def measure(self, question: dict[str, Any]) -> dict[str, Any]:
        """Measure something; empty if that kills or blocks the device."""
        if self._process is None:
            self._start()
        message, _ = self._exchange(question, self.options.measure_s)
        if message is None:
            self._end()
            return {}
        return {name: value for name, value in message.items() if value not in (None, {})}

    def _exchange(self, question: dict[str, Any] | None, seconds: float) -> tuple[dict[str, Any] | None, Tried]:
        """Send a question, if there is one, and wait for the next message; None if none comes, with the reason."""
        connection = self._connection
        assert connection is not None  # noqa: S101 - it is there whenever the process is
        try:
            if question is not None:
                connection.send_bytes(json.dumps(question).encode())
            if not connection.poll(seconds):
                return None, Tried(status="hung", reason=f"no answer within {seconds:g} s; the process was killed")
            return json.loads(connection.recv_bytes()), Tried(status="ran")
        except (EOFError, ConnectionError):
            return None, Tried(status="crashed", reason=self._last_words())

    def _start(self) -> None:
        self.starts += 1
        ours, theirs = self._context.Pipe()
        settings = {
            "profile": self._profile,
            "imports": [str(Path(name).resolve()) if name.endswith(".py") else name for name in self.options.imports],
            "max_bytes": self.options.max_bytes,
            "log": str(self._log()),
        }
        from day0.devices.probe_worker import serve

        self._process = self._context.Process(target=serve, args=(theirs, json.dumps(settings)), daemon=True)
        self._process.start()
        theirs.close()  # else its end would never be seen
        self._connection = ours
        message, ending = self._exchange(None, self.options.start_s)
        where = f"device '{self._profile['torch_device']}'"
        if message is None:
            self._end()
            raise Day0Error(where, f"a process that opens it ends badly: {ending.reason}", hint="see its driver's log")
        if "where" in message:
            self._end()
            raise Day0Error(message["where"], message["what"], hint=message["hint"])
        self._facts = DeviceFacts.model_validate(message)

    def _end(self) -> None:
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.join()
            process.close()

    def _log(self) -> Path:
        return Path(self._folder.name) / f"{self.starts}.log"

    def _last_words(self) -> str:
        """Say how the process died, with the first line that it printed about it."""
        process = self._process
        assert process is not None  # noqa: S101 - it is there until `_end`
        process.join(self.options.timeout_s)
        code = process.exitcode
        how = "it closed its pipe" if code is None else f"it ended with exit code {code}"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                how = f"it died of {signal.Signals(-code).name}"
        said = _told(self._log())
        return f"{how}: {said}" if said else how


def _told(log: Path) -> str:
    """Return the last line before Python's own report of the death; empty where there is none."""
    try:
        size = log.stat().st_size
        with log.open("rb") as file:
            file.seek(max(0, size - 8192), os.SEEK_SET)
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    before = [line.strip() for line in lines]
    fatal = next((place for place, line in enumerate(before) if line.startswith("Fatal Python error")), len(before))
    spoken = [line for line in before[:fatal] if line]
    return spoken[-1][:200] if spoken else ""

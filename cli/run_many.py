"""Several runs, each in a process of its own: one after another, or some side by side."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import IO

from day0.cli.failures import run_guarded
from day0.cli.run_one import Job, RunFlags, RunResult, StageLine, perform_run
from day0.cli.talk import Talk, safe
from day0.errors import ExitCode

__all__ = ["Setting", "perform_runs"]

GRACE_S = 10.0
"""Time for a run that is told to stop: it writes down what it has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """How several runs go."""

    flags: RunFlags
    parallel: int = 1
    fail_fast: bool = False
    as_json: bool = False
    width: int = 80
    """Columns of what runs print that is shown later."""


@dataclass(kw_only=True, slots=True)
class _Running:
    job: Job
    process: ForkProcess
    news: Connection
    log: IO[bytes] | None
    """What it prints, where other runs print too."""
    began: float
    lines: list[StageLine] = field(default_factory=list)
    stopped: str = ""


def perform_runs(jobs: Sequence[Job], setting: Setting, talk: Talk) -> tuple[list[RunResult], bool]:
    """Perform the runs and return what became of each, in their order, and whether the user interrupted.

    A run that fails does not stop the others, unless `fail_fast` says so. Ctrl-C ends all.
    """
    waiting, running = list(jobs), list[_Running]()
    results: dict[str, RunResult] = {}
    interrupted = False
    try:
        while waiting or running:
            while waiting and len(running) < setting.parallel:
                running.append(_begin(waiting.pop(0), setting, talk, of=len(jobs)))
            _listen(running, talk, aloud=setting.parallel > 1)
            for one in [one for one in running if not one.process.is_alive()]:
                running.remove(one)
                results[one.job.name] = _end(one, setting, talk)
                if setting.fail_fast and results[one.job.name].code:
                    _stop(running, f"stopped: {one.job.name} failed")
                    waiting.clear()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        with _undisturbed():
            _stop(running, "interrupted")
            results.update({one.job.name: _end(one, setting, talk) for one in running})
    return [results.get(job.name) or _never(job) for job in jobs], interrupted


def _begin(job: Job, setting: Setting, talk: Talk, *, of: int) -> _Running:
    """Fork: nothing heavy is loaded yet, so that nothing of torch is shared between runs."""
    here, there = multiprocessing.Pipe(duplex=False)
    log = tempfile.TemporaryFile() if setting.parallel > 1 else None  # noqa: SIM115 - closed when the run has ended
    sys.stdout.flush()
    sys.stderr.flush()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_work, args=(job, setting, there, log, os.getpid()), name=job.name)
    if setting.parallel > 1:
        talk.note(f"[{job.name}] begins, one of {of}")
    else:
        talk.say(f"\n[bold]── {safe(job.name)}[/bold]")
    process.start()
    there.close()
    with contextlib.suppress(OSError):  # it has done so itself, or is gone
        os.setpgid(process.pid or 0, process.pid or 0)
    return _Running(job=job, process=process, news=here, log=log, began=time.monotonic())


def _work(job: Job, setting: Setting, news: Connection, log: IO[bytes] | None, parent: int) -> None:
    """Be one run: in a group of its own, so that it can be ended with everything it started."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it may write to the terminal though it is in the background
    with contextlib.suppress(AttributeError, OSError):  # Linux only: elsewhere it goes on alone
        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(ExitCode.INTERRUPTED)
    if setting.parallel > 1:
        # Before torch is loaded, which reads it once: the cores are shared.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // setting.parallel)))
    if log is not None:
        os.environ.setdefault("COLUMNS", str(setting.width))
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - for good
        sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
    code = run_guarded(
        lambda: perform_run(job, setting.flags, Talk(as_json=setting.as_json, plain=setting.flags.plain), news.send)
    )
    sys.stdout.flush()
    sys.stderr.flush()
    news.close()
    os._exit(code)  # taking all modules down costs a second


def _listen(running: Sequence[_Running], talk: Talk, *, aloud: bool) -> None:
    """Wait until a run has something to say, or has ended."""
    by_pipe = {one.news: one for one in running if not one.news.closed}
    for ready in wait([*by_pipe, *(one.process.sentinel for one in running)]):
        one = by_pipe.get(ready) if isinstance(ready, Connection) else None
        if one is None:
            continue
        try:
            line = one.news.recv()
        except (EOFError, OSError):
            one.news.close()
            continue
        one.lines.append(line)
        if aloud:
            made = "kept" if line.kept else f"in {line.seconds:.1f} s"
            talk.note(f"[{one.job.name}] {line.stage} {line.verdict} {made}")


def _end(one: _Running, setting: Setting, talk: Talk) -> RunResult:
    one.process.join()
    _listen_to_the_rest(one)
    if one.log is not None:
        _show_log(one, talk)
    code = one.process.exitcode
    note = one.stopped
    if code is not None and code < 0 and not note:
        note = f"its process was ended by {signal.Signals(-code).name}"
    if code is None or code < 0:
        code = int(ExitCode.INTERRUPTED if one.stopped else ExitCode.GATE_FAILED)
    return RunResult(
        name=one.job.name,
        playbook=str(one.job.run.playbook),
        folder=str(one.job.folder),
        code=code,
        seconds=round(time.monotonic() - one.began, 3),
        stages=tuple(one.lines),
        note=note,
    )


def _listen_to_the_rest(one: _Running) -> None:
    with contextlib.suppress(EOFError, OSError):
        while not one.news.closed and one.news.poll():
            one.lines.append(one.news.recv())
    one.news.close()


def _show_log(one: _Running, talk: Talk) -> None:
    """Print what a run printed, in one piece, so that runs do not mix."""
    talk.say(f"\n[bold]── {safe(one.job.name)}[/bold]")
    assert one.log is not None  # noqa: S101 - asked by the caller
    one.log.seek(0)
    stream = talk.out.file
    for line in one.log:
        stream.write(line.decode("utf-8", "replace"))
    stream.flush()
    one.log.close()


def _stop(running: Sequence[_Running], why: str) -> None:
    """Tell runs to stop as Ctrl-C does; those that do not are ended."""
    for one in running:
        one.stopped = why
        _signal(one, signal.SIGINT)
    deadline = time.monotonic() + GRACE_S
    for one in running:
        one.process.join(max(0.0, deadline - time.monotonic()))
        if one.process.is_alive():
            _signal(one, signal.SIGKILL)


def _signal(one: _Running, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):  # it is gone
        os.killpg(one.process.pid or 0, number)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let a second Ctrl-C not keep us from ending what we started."""
    before: Callable[..., object] | int | None = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _never(job: Job) -> RunResult:
    return RunResult(name=job.name, playbook=str(job.run.playbook), folder=str(job.folder), code=None, note="not begun")

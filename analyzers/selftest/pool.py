"""Spread tasks of the selftest over processes; each opens the bench once."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from day0.analyzers.selftest.tasks import Workshop
from day0.devices.profile import DeviceProfile
from day0.errors import Day0Error
from day0.records import Lock, Signature
from day0.reference_ops.torch_ops import register_operators
from day0.registry.collect import collect

__all__ = ["Pool", "Task", "open_pool"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A method of the workshop and its arguments."""

    name: str
    """For people."""
    method: str
    arguments: tuple[Any, ...]


class Pool:
    """Runs tasks here, or in processes of their own."""

    def __init__(self, workshop: Workshop | None, executor: ProcessPoolExecutor | None) -> None:
        self._workshop, self._executor = workshop, executor

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        """Yield each task with its result, as they end. Raises Day0Error if a process dies."""
        if self._executor is None:
            for task in tasks:
                yield task, getattr(self._workshop, task.method)(*task.arguments)
            return
        waiting: dict[Future[Any], Task] = {self._executor.submit(_run, task): task for task in tasks}
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    task = waiting.pop(future)
                    yield task, future.result()
        except BrokenProcessPool:
            names = ", ".join(sorted(task.name for task in waiting.values())[:5])
            raise Day0Error(
                "selftest",
                "a process that checks died",
                facts=(f"it was at one of: {names}",),
                hint="run these alone with --only NAME --jobs 1",
            ) from None


@contextmanager
def open_pool(
    profile: DeviceProfile, signatures: Sequence[Signature], lock: Lock, *, jobs: int, usual: bool
) -> Iterator[Pool]:
    """Open the bench here for one job, else in as many processes."""
    arguments = (profile, tuple(signatures), lock, usual)
    if jobs == 1:
        workshop = _open(*arguments)
        try:
            yield Pool(workshop, None)
        finally:
            workshop.close()
        return
    # Not forked: threads of torch and of the progress bar do not survive that.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=arguments)
    try:
        yield Pool(None, executor)
    finally:
        executor.shutdown(cancel_futures=True)


_OPENED: list[Workshop] = []
"""In a process of its own: the bench, opened once."""


def _open(profile: DeviceProfile, signatures: Sequence[Signature], lock: Lock, usual: bool) -> Workshop:
    register_operators()
    return Workshop(profile, signatures, lock, collect(()), usual=usual)


def _begin(profile: DeviceProfile, signatures: Sequence[Signature], lock: Lock, usual: bool) -> None:
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    _OPENED.append(_open(profile, signatures, lock, usual))


def _end_with(parent: int) -> None:
    """End this process when the one that asks is gone: a killed selftest leaves nothing behind."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _run(task: Task) -> Any:
    return getattr(_OPENED[0], task.method)(*task.arguments)

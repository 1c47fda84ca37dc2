"""Workers that a test starts, from a server that has imported torch: a process of their own still, without its three seconds."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext

import pytest

__all__ = ["quick_starts"]

IMPORTED = ("day0.devices.open", "day0.devices.probe_worker", "day0.reference_ops.torch_ops", "torch")
"""Imported once by the server, before it forks; none of them opens a device or starts a thread."""


@contextmanager
def quick_starts() -> Iterator[None]:
    """Let what asks for spawned processes have forks of a fresh process that has opened nothing.

    What a worker does, how it dies and what is seen of it are the same. A test of the start itself must not use this.
    """
    real, forks = multiprocessing.get_context, multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(list(IMPORTED))

    def context(method: str | None = None) -> BaseContext:
        return forks if method == "spawn" else real(method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", context)
        yield

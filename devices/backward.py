"""Backward passes in the thread that asks for them: torch's threads of autograd know no context of ours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["in_this_thread"]


class _Standing:
    """How many contexts that were entered in a thread hold its switch, and how it stood before the first."""

    def __init__(self) -> None:
        # Again by its owner: a generator that is collected meanwhile ends its context here.
        self.lock = threading.RLock()
        self.count = 0
        self.before = True
        self.left = False
        """The last of them ended in another thread, which cannot move this one's switch."""


class _Threads(threading.local):
    """The standing of each thread."""

    def __init__(self) -> None:
        self.standing = _Standing()


_THREADS = _Threads()


@contextmanager
def in_this_thread() -> Iterator[None]:
    """Keep torch's backward passes of this thread in it, until the last of its contexts ends.

    Counted, since torch's own switch gives back what stood when it was made: of two tasks that take turns in one thread,
    the first to end would switch the other's off, and the second would leave it off for ever. A context that ends in
    another thread, as one in a generator may, leaves the switch as it is until the next one of its own thread ends.
    """
    mine = _THREADS.standing
    with mine.lock:
        if mine.count == 0:
            if not mine.left:
                mine.before = torch._C._is_multithreading_enabled()
            torch._C._set_multithreading_enabled(False)
        mine.count += 1
    try:
        yield
    finally:
        with mine.lock:
            mine.count -= 1
            if mine.count == 0:
                mine.left = mine is not _THREADS.standing
                if not mine.left:
                    torch._C._set_multithreading_enabled(mine.before)

"""Backward passes in the thread that asks for them: torch's threads of autograd know no context of ours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["in_this_thread"]


class _Standing(threading.local):
    """How many contexts of this thread hold the switch, and how it stood before the first."""

    count = 0
    before = True


_STANDING = _Standing()


@contextmanager
def in_this_thread() -> Iterator[None]:
    """Keep torch's backward passes of this thread in it, until the last of its contexts ends.

    Counted, since torch's own switch gives back what stood when it was made: of two tasks that take turns in one thread,
    the first to end would switch the other's off, and the second would leave it off for ever.
    """
    if _STANDING.count == 0:
        _STANDING.before = torch._C._is_multithreading_enabled()
        torch._C._set_multithreading_enabled(False)
    _STANDING.count += 1
    try:
        yield
    finally:
        _STANDING.count -= 1
        if _STANDING.count == 0:
            torch._C._set_multithreading_enabled(_STANDING.before)

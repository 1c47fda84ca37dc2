"""What a rank says while it works: where it is, until when it may take, in which collective it waits.

It stands in memory that the parent sees too, so that the last words of a process that dies are not lost.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

__all__ = ["RankBoard"]

SIZE = 256
_HEAD = struct.Struct("dqq")
_PHASE, _COLLECTIVE = 32, 128
_WAITS = "waits in "


class RankBoard:
    """One page of a file, mapped by the rank and by its parent."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), SIZE)

    def begin(self) -> None:
        """Say that this process is the rank."""
        self._set(0.0, os.getpid(), 0)

    def phase(self, name: str, seconds: float) -> None:
        """Enter a phase that may take so long."""
        self._write(_PHASE, name, _COLLECTIVE - _PHASE)
        self._set(time.monotonic() + seconds, self.pid, self.collectives)

    def enter(self, kind: str, seconds: float) -> None:
        """Begin a collective: from here to `wait` it is this rank alone that has to act."""
        self._write(_COLLECTIVE, kind, SIZE - _COLLECTIVE)
        self._set(time.monotonic() + seconds, self.pid, self.collectives + 1)

    def wait(self) -> None:
        """Say that this rank has given its part, and waits for the others."""
        self._write(_COLLECTIVE, f"{_WAITS}{self.inside}", SIZE - _COLLECTIVE)

    def leave(self, seconds: float) -> None:
        """Leave it; what comes next may take so long."""
        self._write(_COLLECTIVE, "", SIZE - _COLLECTIVE)
        self._set(time.monotonic() + seconds, self.pid, self.collectives)

    @property
    def pid(self) -> int:
        """Process of the rank; 0 before it began."""
        return int(_HEAD.unpack_from(self._page, 0)[1])

    @property
    def collectives(self) -> int:
        """How many collectives it has entered."""
        return int(_HEAD.unpack_from(self._page, 0)[2])

    @property
    def late(self) -> bool:
        """Whether the time that it gave itself is over. The monotonic clock is one for all processes of a system."""
        until = float(_HEAD.unpack_from(self._page, 0)[0])
        return 0.0 < until < time.monotonic()

    @property
    def where(self) -> str:
        """The phase that was entered last."""
        return self._read(_PHASE, _COLLECTIVE - _PHASE)

    @property
    def inside(self) -> str:
        """The collective that it is in; empty outside of one."""
        return self._read(_COLLECTIVE, SIZE - _COLLECTIVE).removeprefix(_WAITS)

    @property
    def waits(self) -> bool:
        """Whether it has given its part to a collective."""
        return self._read(_COLLECTIVE, SIZE - _COLLECTIVE).startswith(_WAITS)

    def close(self) -> None:
        """Let the page go."""
        self._page.close()

    def _set(self, until: float, pid: int, collectives: int) -> None:
        _HEAD.pack_into(self._page, 0, until, pid, collectives)

    def _write(self, place: int, text: str, size: int) -> None:
        data = text.encode()[: size - 1]
        self._page[place : place + len(data) + 1] = data + b"\0"

    def _read(self, place: int, size: int) -> str:
        return self._page[place : place + size].partition(b"\0")[0].decode(errors="replace")

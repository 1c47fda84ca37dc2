"""What a worker says while it works: where it is, until when it may take, which operator it called last.

It stands in memory that both processes see, so that the last words of a process that dies are not lost.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path
from typing import Literal, Protocol

__all__ = ["SILENT", "Board", "Phase", "Teller"]

Phase = Literal["idle", "inputs", "reference", "device", "judge"]

SIZE = 512
_OPERATOR, _PHASE = 64, 16
"""Where the texts begin; the deadline stands first."""


class Teller(Protocol):
    """Whom a case tells where it is."""

    def phase(self, name: Phase, seconds: float) -> None:
        """Enter a phase that may take so long; 0 for no limit."""

    def operator(self, name: str) -> None:
        """Say which operator is called now."""


class _Silent:
    """For a case that runs in this process."""

    def phase(self, name: Phase, seconds: float) -> None:
        """Say nothing."""

    def operator(self, name: str) -> None:
        """Say nothing."""


SILENT: Teller = _Silent()


class Board:
    """One page of a file, mapped by the worker and by its parent."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), SIZE)

    def phase(self, name: Phase, seconds: float) -> None:
        """Enter a phase that may take so long; 0 for no limit."""
        self._write(_PHASE, name, 32)
        # The monotonic clock is one for all processes of a system.
        struct.pack_into("d", self._page, 0, time.monotonic() + seconds if seconds else 0.0)

    def operator(self, name: str) -> None:
        """Say which operator is called now."""
        self._write(_OPERATOR, name, SIZE - _OPERATOR)

    def _write(self, place: int, text: str, size: int) -> None:
        data = text.encode()[: size - 1]
        self._page[place : place + len(data) + 1] = data + b"\0"

    def _read(self, place: int, size: int) -> str:
        return self._page[place : place + size].partition(b"\0")[0].decode(errors="replace")

    @property
    def late(self) -> bool:
        """Whether the time of the phase is over."""
        deadline: float = struct.unpack_from("d", self._page, 0)[0]
        return 0.0 < deadline < time.monotonic()

    @property
    def where(self) -> str:
        """The phase that was entered last."""
        return self._read(_PHASE, 32)

    @property
    def last_operator(self) -> str:
        """The operator that was called last."""
        return self._read(_OPERATOR, SIZE - _OPERATOR)

    def close(self) -> None:
        """Let the page go."""
        self._page.close()

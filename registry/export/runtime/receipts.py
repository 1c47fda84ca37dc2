"""Each process writes down which locked implementations ran in it, how often, where and on which shapes.

Written at once on the first call, then at 2, 4, 8, … calls, every other second in which there are calls, and when the
process ends: engines kill their workers, and what was meant to be written at the end is lost. So the counts in a file
are lower bounds. Standard library only.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["SCHEMA", "ReceiptBook"]

SCHEMA = "day0.receipt/1"
EVERY_SECONDS = 2.0
"""So long a call may wait to be written, where another one follows."""
MOST_SHAPES = 64
"""Of one implementation in one place; more are counted, not kept."""


class ReceiptBook:
    """The receipts of this process."""

    def __init__(self, folder: Path, *, lock: str, engine: str, engine_version: str, role: str) -> None:
        self.folder = folder
        self._guard = threading.RLock()
        self._calls: dict[tuple[str, str, str, str], dict[str, Any]] = {}
        self._bound: set[tuple[str, str]] = set()
        self._declined: dict[tuple[str, str, str, bool], int] = {}
        self._written = 0.0
        self._head: dict[str, Any] = {
            "schema": SCHEMA,
            "lock": lock,
            "engine": engine,
            "engine_version": engine_version,
            "role": role,
            "command": [Path(part).name if n == 0 else part[:200] for n, part in enumerate(sys.argv[:8])],
        }
        self._restart()
        os.register_at_fork(after_in_child=self._restart_in_child)
        atexit.register(self.write)
        self.write()

    def _restart(self) -> None:
        self._head |= {"pid": os.getpid(), "parent": os.getppid(), "started": time.time()}
        name = f"{self._head['engine']}-{self._head['pid']}-{int(self._head['started'] * 1000)}.json"
        self._path = self.folder / name

    def _restart_in_child(self) -> None:
        # A forked worker has the numbers of its parent, and must not write into its parent's file.
        self._guard = threading.RLock()
        self._calls, self._bound, self._declined = {}, set(), {}
        self._restart()

    def bound(self, target: str, site: str) -> None:
        """Write down that an instance of a target will call the locked operators; one without a call is a finding."""
        with self._guard:
            self._bound.add((target, site))
            self.write()

    def declined(self, target: str, site: str, reason: str, *, meant: bool = False) -> None:
        """Write down that the engine's own code ran, or will run, instead of a locked implementation.

        `meant`: as it should be, such as for another model in the same process; else it is a hole in the coverage.
        """
        with self._guard:
            key = (target, site, reason, meant)
            self._declined[key] = count = self._declined.get(key, 0) + 1
            if count & (count - 1) == 0:
                self.write()

    def ran(self, identity: str, dtypes: str, target: str, site: str, shapes: str, *, captured: bool) -> None:
        """Count one call of a locked implementation. `shapes` is one text for all tensors; no tensor is kept."""
        key = (identity, dtypes, target, site)
        with self._guard:
            mine = self._calls.get(key)
            if mine is None:
                mine = self._calls[key] = {"count": 0, "captured": 0, "shapes": {}, "more_shapes": 0}
            mine["count"] += 1
            mine["captured"] += captured
            new = shapes not in mine["shapes"]
            if new and len(mine["shapes"]) >= MOST_SHAPES:
                mine["more_shapes"] += 1
            else:
                mine["shapes"][shapes] = mine["shapes"].get(shapes, 0) + 1
            if mine["count"] & (mine["count"] - 1) == 0 or time.monotonic() - self._written > EVERY_SECONDS:
                self.write()

    def document(self) -> dict[str, Any]:
        """Return everything as the file holds it."""
        with self._guard:
            return {
                **self._head,
                "written": time.time(),
                "bound": [{"target": target, "site": site} for target, site in sorted(self._bound)],
                "declined": [
                    {"target": key[0], "site": key[1], "reason": key[2], "meant": key[3], "count": count}
                    for key, count in sorted(self._declined.items())
                ],
                "calls": [
                    {"identity": key[0], "dtypes": key[1], "target": key[2], "site": key[3], **mine}
                    for key, mine in sorted(self._calls.items())
                ],
            }

    def write(self) -> None:
        """Write the file in one piece: whoever reads it sees all of the old or all of the new."""
        with self._guard:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=self.folder)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(self.document(), file, indent=1)
            Path(name).replace(self._path)
            self._written = time.monotonic()

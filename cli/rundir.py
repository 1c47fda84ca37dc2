"""The run folder: atomic writes, input hashes, and whether a stage is fresh, with the reason."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from day0.cli.plan_files import opened, stored, with_files
from day0.codec import Envelope, NewerRecordError, decode, encode
from day0.errors import Day0Error
from day0.playbook import Playbook
from day0.records import (
    CanaryReport,
    EndpointReport,
    Inventory,
    Lock,
    NumericsReport,
    RanksReport,
    Record,
    Trace,
)

__all__ = ["BESIDE", "FILES", "Freshness", "RunFolder", "write_atomically"]

R = TypeVar("R", bound=Record)

PATIENCE_S = 5.0
"""For a folder that somebody holds: after that it is somebody at work."""
FILES: dict[type[Record], tuple[str, str]] = {
    Trace: ("trace", "trace.json"),
    Inventory: ("inventory", "inventory.json"),
    Lock: ("register", "ops.lock"),
    NumericsReport: ("check", "numerics.json"),
    CanaryReport: ("canary", "canary.json"),
}
"""Stage and file of each record."""

BESIDE: dict[type[Record], tuple[str, str]] = {
    EndpointReport: ("canary --endpoint URL", "endpoint.json"),
    RanksReport: ("canary ranks N", "ranks.json"),
}
"""Records that are no stage of their own: the command that makes each, and its file."""

MAX_RECORD_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Freshness:
    """Whether a stage's output still belongs to its inputs, and why."""

    fresh: bool
    reason: str
    held: bool = False
    """Kept because the user said so, whatever became of its inputs."""


class RunFolder:
    """One run on disk. Everything in it is written to a temporary name, synced, then renamed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: dict[str, tuple[tuple[int, int, int], Any]] = {}
        """Records that were read, with what the file looked like then: large ones take a second to read."""

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder."""
        return self.path / name

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes of day0 out while this one works. The kernel lets go when a process dies."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / ".held", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise Day0Error(
                str(self.path), f"cannot be used as a run folder: {error.strerror}", hint="name another with --run"
            ) from None
        try:
            self._lock(handle)
            self._remove_leftovers()
            yield
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> None:
        """Take the lock, with some patience: workers of a run that was killed hold it until they are gone too."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < until:
                    time.sleep(0.02)  # flock has no limit of time
                    continue
                hint = "wait for it, or name another --run"
                raise Day0Error(str(self.path), "another day0 is at work in this run folder", hint=hint) from None
            return

    def _remove_leftovers(self) -> None:
        for path in self.path.glob(".*.part"):
            path.unlink(missing_ok=True)

    def has(self, kind: type[Record]) -> bool:
        """Say whether a record is there, whatever is in it."""
        return self.file(FILES[kind][1]).exists()

    def read(self, kind: type[R]) -> Envelope[R] | None:
        """Read a record; None if it is not there. Raises Day0Error for one that is damaged or too new."""
        stage, name = FILES.get(kind) or BESIDE[kind]
        state = self._state(name)
        seen = self._seen.get(name)
        if state is not None and seen is not None and seen[0] == state:
            found: Envelope[R] = seen[1]
            return found
        text = self.read_text(name)
        if text is None:
            return None
        found = decode(kind, text, where=str(self.file(name)), remake=self._remake(stage))
        if state is not None:
            self._seen[name] = (state, found)
        return found

    def _state(self, name: str) -> tuple[int, int, int] | None:
        """Return what changes when a file is replaced or written to; None where it cannot be asked."""
        try:
            found = self.file(name).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _remake(self, stage: str) -> str:
        """Return the command that makes a record again."""
        if stage != "trace":
            return f"day0 {stage} --run {self.path} --force"
        try:
            plan = self.read_plan()
        except Day0Error:
            plan = None
        return f"day0 trace {plan.model.source if plan else 'MODEL'} --run {self.path} --force"

    def need(self, kind: type[R]) -> Envelope[R]:
        """Read a record that has to be there."""
        found = self.read(kind)
        if found is None:
            stage, name = FILES[kind]
            raise Day0Error(
                str(self.path),
                f"there is no {name} yet",
                hint=f"make it with `{self._remake(stage).removesuffix(' --force')}`",
            )
        return found

    def read_text(self, name: str) -> str | None:
        """Read a text file of the folder; None if it is not there."""
        path = self.file(name)
        try:
            state = path.stat()
            if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
                raise Day0Error(str(path), "this is no plain file, and reading it may never end", hint="remove it")
            if state.st_size > MAX_RECORD_BYTES:
                raise Day0Error(str(path), "the file is over 1 GiB, which no record is", hint="is it ours?")
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise Day0Error(str(path), f"byte {error.start} is not UTF-8", hint="remove it and run again") from None
        except OSError as error:
            raise Day0Error(str(path), f"cannot be read: {error.strerror}", hint="check its permissions") from None

    def write(self, record: Record, *, inputs: dict[str, str], environment: dict[str, str]) -> str:
        """Write a record and return its file name."""
        _, name = FILES[type(record)]
        write_atomically(self.file(name), encode(record, inputs=inputs, environment=environment))
        return name

    def freshness(self, kind: type[Record], inputs: dict[str, str]) -> Freshness:
        """Compare the hashes of the inputs now with those the output was made from.

        A damaged record is stale. Raises NewerRecordError for one of a later day0, which must not be overwritten.
        """
        name = FILES[kind][1]
        try:
            found = self.read(kind)
        except NewerRecordError:
            raise
        except Day0Error as error:
            return Freshness(fresh=False, reason=error.what)
        if found is None:
            return Freshness(fresh=False, reason=f"there is no {name} yet")
        changed = sorted(key for key in {*found.inputs, *inputs} if found.inputs.get(key) != inputs.get(key))
        if changed:
            return Freshness(fresh=False, reason=f"changed since: {', '.join(changed)}")
        return Freshness(fresh=True, reason="its inputs are unchanged: " + ", ".join(sorted(inputs)))

    def read_plan(self) -> Playbook | None:
        """Read the plan that this folder was made for."""
        text = self.read_text("plan.json")
        if text is None:
            return None
        try:
            return with_files(Playbook.model_validate_json(text), self.path, opened)
        except ValueError:
            raise Day0Error(
                str(self.file("plan.json")),
                "it is damaged or of another version",
                hint="remove this file and give the command with all its options again",
            ) from None

    def write_plan(self, plan: Playbook) -> None:
        """Write the plan, unless it is there already. Its files are named from the run folder on."""
        # Not sorted: phases are run in their order.
        stored_plan = with_files(plan, self.path, stored)
        text = json.dumps(stored_plan.model_dump(mode="json", by_alias=True), indent=1) + "\n"
        if self.read_text("plan.json") != text:
            write_atomically(self.file("plan.json"), text)


def write_atomically(path: Path, text: str) -> None:
    """Write so that at any moment the file holds either all of the old or all of the new text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

"""What is finished of a conversion that is going on: one line for each file, so that a kill loses one file at most.

The journal is also the lock: whoever converts into a folder holds it, and the kernel lets go when a process dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from dataclasses import asdict
from pathlib import Path

from day0.converters.textfile import MAX_BYTES
from day0.converters.verdict import Verdict
from day0.errors import Day0Error
from day0.hashing import hash_json

__all__ = ["JOURNAL", "Journal", "Stamps"]

JOURNAL = "day0-convert.journal"
_COUNTS = ("changed", "subnormal", "nan")

Stamps = dict[str, list[int]]
"""Source file to its size and when it was written last."""


class Journal:
    """The file, and what it says."""

    def __init__(self, folder: Path, identity: dict[str, object]) -> None:
        """Open or begin the journal of a folder, and keep others out until `close`.

        Raises Day0Error where somebody else holds it, and where it belongs to another source or to other parameters:
        their files must not be mixed.
        """
        self.path = folder / JOURNAL
        self.done: dict[str, dict[str, Verdict]] = {}
        self.stamps: dict[str, Stamps] = {}
        """Of the source files that a finished file was made from, when it was."""
        self._file = _held(self.path)
        try:
            self._read(identity)
        except BaseException:
            self.close()
            raise

    def _read(self, identity: dict[str, object]) -> None:
        if os.fstat(self._file).st_size > MAX_BYTES:
            raise Day0Error(str(self.path), "it is too long to be ours", hint="name another folder")
        data = os.pread(self._file, MAX_BYTES, 0)
        # Killed while it was written, the last line has no end: it says nothing then, and what follows must not be
        # glued to it.
        whole = data[: data.rfind(b"\n") + 1]
        os.ftruncate(self._file, len(whole))
        if not whole:
            self._append({"identity": identity})
            return
        first, *rest = (_line(one) for one in whole.split(b"\n")[:-1])
        if first.get("identity") != identity:
            raise Day0Error(
                str(self.path.parent),
                "a conversion of another source, or with other options, was begun here",
                facts=tuple(_differences(first.get("identity"), identity)),
                hint="run it with the options of then, or name another folder",
            )
        for one in rest:
            name, verdicts, stamps = one.get("file"), _verdicts(one.get("verdicts")), one.get("sources")
            if isinstance(name, str) and verdicts is not None and isinstance(stamps, dict):
                self.done[name], self.stamps[name] = verdicts, stamps

    def add(self, name: str, verdicts: dict[str, Verdict], stamps: Stamps) -> None:
        """Note that a file is finished, and what it was made from. Raises OSError."""
        plain = {key: asdict(one) for key, one in verdicts.items()}
        self._append({"file": name, "verdicts": plain, "sources": stamps})
        self.done[name], self.stamps[name] = verdicts, stamps

    def _append(self, line: dict[str, object]) -> None:
        data = memoryview((json.dumps(line, sort_keys=True) + "\n").encode())
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    def remove(self) -> None:
        """The conversion is complete."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let others in."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _held(path: Path) -> int:
    # Not through a link, which may lead anywhere, and without waiting for a pipe.
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise Day0Error(str(path), "it is no file, so it is not ours", hint="name another folder")
        _lock(file, path)
        if not path.exists() or not os.path.samestat(os.fstat(file), path.stat()):
            what = "another conversion into it has ended just now"
            raise Day0Error(str(path.parent), what, hint="run it again")
    except BaseException:
        os.close(file)
        raise
    return file


def _lock(file: int, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        what = "another day0 is converting into it"
        raise Day0Error(str(path.parent), what, hint="wait for it, or name another folder") from None
    except OSError:
        return  # a file system without locks: there nobody can be kept out


def _line(text: bytes) -> dict[str, object]:
    try:
        found = json.loads(text.decode())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _verdicts(value: object) -> dict[str, Verdict] | None:
    """Return them; None where one is not what we write, for then nothing is known of the file."""
    if not isinstance(value, dict):
        return None
    found = {key: _verdict(one) for key, one in value.items()}
    whole = {key: one for key, one in found.items() if one is not None}
    return whole if len(whole) == len(found) else None


def _verdict(value: object) -> Verdict | None:
    if not isinstance(value, dict) or set(value) != set(asdict(Verdict())):
        return None
    counts = [value[name] for name in _COUNTS]
    if not all(one is None or (type(one) is int and one >= 0) for one in counts) or counts[-1] is None:
        return None
    if not all(isinstance(value[name], str) for name in ("bound", "refusal")):
        return None
    return Verdict(**value)


def _differences(old: object, new: dict[str, object]) -> list[str]:
    if not isinstance(old, dict):
        return ["its first line is not ours"]
    facts = []
    for key in sorted({*old, *new}):
        if old.get(key) == new.get(key):
            continue
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            facts += [
                f"{name}: {before.get(name)!r} then, {after.get(name)!r} now"
                for name in sorted({*before, *after})
                if before.get(name) != after.get(name)
            ]
        else:
            facts.append(f"{key}: {hash_json(before)[:20]} then, {hash_json(after)[:20]} now")
    return [fact[:160] for fact in facts]

"""What is finished of a conversion that is going on: one line for each file, so that a kill loses one file at most."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from day0.converters.verdict import Verdict
from day0.errors import Day0Error
from day0.hashing import hash_json

__all__ = ["JOURNAL", "Journal"]

JOURNAL = "day0-convert.journal"
MAX_BYTES = 256 << 20


class Journal:
    """The file, and what it says."""

    def __init__(self, folder: Path, identity: dict[str, object]) -> None:
        """Open or begin the journal of a folder.

        Raises Day0Error where it belongs to another source or to other parameters: their files must not be mixed.
        """
        self.path = folder / JOURNAL
        self.done: dict[str, dict[str, Verdict]] = {}
        if self.path.exists():
            self._read(identity)
        else:
            self._append({"identity": identity})

    def _read(self, identity: dict[str, object]) -> None:
        if self.path.stat().st_size > MAX_BYTES:
            raise Day0Error(str(self.path), "it is too long to be ours", hint="name another folder")
        text = self.path.read_text(encoding="utf-8", errors="replace")
        # Killed while it was written, the last line has no end: it says nothing then.
        lines = [_line(one) for one in text.split("\n")[:-1]]
        if not lines:
            self.path.unlink()
            self._append({"identity": identity})
            return
        found = lines[0].get("identity")
        if found != identity:
            raise Day0Error(
                str(self.path.parent),
                "a conversion of another source, or with other options, was begun here",
                facts=tuple(_differences(found, identity)),
                hint="run it with the options of then, or name another folder",
            )
        for one in lines[1:]:
            name, verdicts = one.get("file"), one.get("verdicts")
            if isinstance(name, str) and isinstance(verdicts, dict):
                self.done[name] = {key: _verdict(value) for key, value in verdicts.items()}
        if not text.endswith("\n"):
            # What follows would otherwise be glued to the half line.
            with self.path.open("r+", encoding="utf-8") as file:
                file.truncate(len(text[: text.rfind("\n") + 1].encode()))

    def add(self, name: str, verdicts: dict[str, Verdict]) -> None:
        """Note that a file is finished."""
        self.done[name] = verdicts
        self._append({"file": name, "verdicts": {key: asdict(one) for key, one in verdicts.items()}})

    def _append(self, line: dict[str, object]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """The conversion is complete."""
        self.path.unlink(missing_ok=True)


def _line(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _verdict(value: object) -> Verdict:
    if not isinstance(value, dict):
        return Verdict(changed=None, subnormal=None)
    return Verdict(**{key: value[key] for key in ("changed", "subnormal", "nan", "bound", "refusal") if key in value})


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

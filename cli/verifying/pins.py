"""The pins of a lock: whether the source of each chosen implementation is what it was when it was chosen."""

from __future__ import annotations

from pathlib import Path

from day0.cli.verifying.found import Found
from day0.errors import Day0Error
from day0.hashing import hash_file
from day0.playbook import Playbook
from day0.records import Lock, LockEntry

__all__ = ["compare_pins"]

CHECKED = "sources of locked implementations"


def compare_pins(lock: Lock, plan: Playbook | None, found: Found) -> None:
    """Compare source hashes with the sources that are here now. Files of a user are hashed and not run."""
    from day0.registry.collect import collect
    from day0.registry.fallback import cpu_fallback

    load = tuple(Path(name) for name in plan.register_.load) if plan else ()
    without = plan.register_.without if plan else ()
    try:
        known = {str(one.identity): one.source_hash for one in collect((), without=without)}
    except Day0Error as error:
        found.unchecked.append(f"sources of locked implementations: {error.where}: {error.what}")
        return
    for number, entry in enumerate(lock.entries):
        part = f"body.entries.{number} ({entry.identity})"
        if (path := _user_file(entry, load)) is not None:
            now = _hash_of(path)
        elif entry.kind == "cpu_fallback":
            now = cpu_fallback(entry.operator).source_hash
        else:
            now = known.get(str(entry.identity), "")
        if not now:
            found.unchecked.append(f"the source of {entry.identity}: nothing here has it; it came from {entry.origin}")
            continue
        found.checked[CHECKED] += 1
        if now != entry.source_hash:
            what = f"its source is not what was locked: {entry.source_hash[:19]} then, {now[:19]} now ({entry.origin})"
            found.bad("ops.lock", what, part)


def _user_file(entry: LockEntry, load: tuple[Path, ...]) -> Path | None:
    """Return the file of a user that brought an entry; only files that the plan names are opened."""
    name = entry.origin.rpartition(":")[0] or entry.origin
    return next((path for path in load if str(path) in (name, entry.origin)), None)


def _hash_of(path: Path) -> str:
    try:
        return hash_file(path) if path.is_file() else ""
    except OSError:
        return ""

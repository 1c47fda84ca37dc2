"""What one lock chooses otherwise than another, or than what is installed could still give: each change with its why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from day0.errors import Day0Error
from day0.implementation import Implementation
from day0.records import Decision, Lock, LockEntry
from day0.registry.entry_points import refuse_missing_distribution

__all__ = ["LockChange", "against_installed", "between_locks"]

What = Literal["lock", "added", "removed", "contract", "implementation", "source", "calls", "gap opened", "gap closed"]
ORDER: tuple[What, ...] = (
    "lock",
    "gap opened",
    "removed",
    "contract",
    "implementation",
    "source",
    "added",
    "gap closed",
    "calls",
)
Key = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class LockChange:
    """One difference."""

    what: What
    operator: str
    dtypes: tuple[str, ...] = ()
    before: str = ""
    after: str = ""
    why: str = ""
    """The decision that explains it, in the words of the lock; empty where there is none."""


def between_locks(before: Lock, after: Lock) -> tuple[LockChange, ...]:
    """Compare two locks. Empty if they choose the same for the same calls."""
    changes = [
        LockChange(what="lock", operator=name, before=old, after=new)
        for name, old, new in (
            ("device", before.device, after.device),
            ("namespace", before.namespace, after.namespace),
            ("model", before.model[:23], after.model[:23]),
        )
        if old != new
    ]
    changes += _gaps(before, after)
    old, new = _entries(before), _entries(after)
    # An entry that a gap has replaced, or that has replaced one, was said with the gap.
    opened, closed = _gap_keys(after), _gap_keys(before)
    changes += [_alone("removed", old[key]) for key in old.keys() - new.keys() - opened]
    changes += [_alone("added", new[key]) for key in new.keys() - old.keys() - closed]
    changes += [one for key in old.keys() & new.keys() for one in _changed(old[key], new[key])]
    return _sorted(changes)


def against_installed(lock: Lock, implementations: Iterable[Implementation]) -> tuple[LockChange, ...]:
    """Compare a lock with what there is now: whether each choice is there, unchanged, and for the current contract."""
    known = {str(one.identity): one for one in implementations}
    versions = {one.operator: one.contract for one in known.values() if one.kind == "reference"}
    changes = [
        change
        for entry in lock.entries
        if entry.kind != "cpu_fallback" and (change := _installed(entry, known, versions)) is not None
    ]
    return _sorted(changes)


def _installed(entry: LockEntry, known: Mapping[str, Implementation], versions: Mapping[str, int]) -> LockChange | None:
    name = str(entry.identity)
    now = versions.get(entry.identity.operator, entry.identity.contract)
    found = known.get(name)
    if found is None:
        what: What = "contract" if now != entry.identity.contract else "removed"
        after = f"contract {now}" if what == "contract" else ""
        return _change(what, entry, before=name, after=after, why=_absence(entry, known))
    if found.source_hash == entry.source_hash:
        return None
    texts = [f"{name} {one.source_hash[:19]}" for one in (entry, found)]
    return _change(
        "source", entry, before=texts[0], after=texts[1], why=f"{found.origin} has changed since it was locked"
    )


def _absence(entry: LockEntry, known: Mapping[str, Implementation]) -> str:
    try:
        refuse_missing_distribution(entry)
    except Day0Error as error:
        return error.what
    mine = entry.identity
    versions = sorted(
        one.version
        for one in known.values()
        if (one.operator, one.namespace, one.id) == (mine.operator, mine.namespace, mine.id)
    )
    if versions:
        return f"version {mine.version} is gone; there is {', '.join(versions)}"
    return f"nothing has this identity now; it came from {entry.origin}"


def _gaps(before: Lock, after: Lock) -> list[LockChange]:
    old, new = (
        {(one.operator, one.dtypes): one for one in before.gaps},
        {(one.operator, one.dtypes): one for one in after.gaps},
    )
    entries_old, entries_new = _entries(before), _entries(after)
    found: list[LockChange] = []
    for key in new.keys() - old.keys():
        was = entries_old.get(key)
        why = _why(str(was.identity), new[key].decisions) if was is not None else ""
        found.append(
            LockChange(
                what="gap opened",
                operator=key[0],
                dtypes=key[1],
                before=str(was.identity) if was is not None else "",
                why=why or next((one.reason for one in reversed(new[key].decisions)), new[key].reason),
            )
        )
    for key in old.keys() - new.keys():
        now = entries_new.get(key)
        text, why = (
            (str(now.identity), _why(str(now.identity), now.decisions)) if now is not None else ("", "not called")
        )
        found.append(LockChange(what="gap closed", operator=key[0], dtypes=key[1], after=text, why=why))
    return found


def _changed(old: LockEntry, new: LockEntry) -> list[LockChange]:
    found: list[LockChange] = []
    before, after = str(old.identity), str(new.identity)
    if old.identity.contract != new.identity.contract:
        texts = (f"contract {old.identity.contract}", f"contract {new.identity.contract}")
        found.append(_change("contract", new, before=texts[0], after=texts[1]))
    if (before, old.kind) != (after, new.kind):
        refused = _why(before, new.decisions) or f"{after}: {_why(after, new.decisions)}"
        found.append(_change("implementation", new, before=before, after=after, why=refused))
    elif old.source_hash != new.source_hash:
        texts = (f"{before} {old.source_hash[:19]}", f"{after} {new.source_hash[:19]}")
        found.append(_change("source", new, before=texts[0], after=texts[1], why=_origins(old, new)))
    if old.signatures != new.signatures:
        more, fewer = set(new.signatures) - set(old.signatures), set(old.signatures) - set(new.signatures)
        found.append(_change("calls", new, why=f"{len(more)} signatures more, {len(fewer)} fewer"))
    return found


def _origins(old: LockEntry, new: LockEntry) -> str:
    was, now = (one.distribution or one.origin for one in (old, new))
    return f"from {now}" if was == now else f"from {was}, now from {now}"


def _why(candidate: str, decisions: Iterable[Decision]) -> str:
    return next((one.reason for one in decisions if one.candidate == candidate), "")


def _alone(what: What, entry: LockEntry) -> LockChange:
    identity = str(entry.identity)
    if what == "removed":
        return _change(what, entry, before=identity, why="no call needs it any more")
    return _change(what, entry, after=identity, why=_why(identity, entry.decisions))


def _change(what: What, entry: LockEntry, *, before: str = "", after: str = "", why: str = "") -> LockChange:
    return LockChange(what=what, operator=entry.operator, dtypes=entry.dtypes, before=before, after=after, why=why)


def _entries(lock: Lock) -> dict[Key, LockEntry]:
    return {(one.operator, one.dtypes): one for one in lock.entries}


def _gap_keys(lock: Lock) -> set[Key]:
    return {(one.operator, one.dtypes) for one in lock.gaps}


def _sorted(changes: Iterable[LockChange]) -> tuple[LockChange, ...]:
    return tuple(sorted(changes, key=lambda one: (ORDER.index(one.what), one.operator, one.dtypes)))

"""What differs between two locks, in words."""

from __future__ import annotations

from typing import NamedTuple

from day0.records import Lock

__all__ = ["lock_changes"]

Key = tuple[str, tuple[str, ...]]


class Choice(NamedTuple):
    """What a lock says of one operator with one tuple of dtypes."""

    what: str
    source_hash: str
    signatures: tuple[str, ...]
    origin: str


NOTHING = Choice("nothing", "", (), "")


def lock_changes(before: Lock, after: Lock) -> tuple[str, ...]:
    """Say what one lock chooses otherwise than the other, sorted by operator; empty if they choose the same."""
    changes = [
        f"{name}: {old} before, {new} now"
        for name, old, new in (
            ("device", before.device, after.device),
            ("namespace", before.namespace, after.namespace),
            ("model", before.model[:19], after.model[:19]),
        )
        if old != new
    ]
    old_choices, new_choices = _choices(before), _choices(after)
    for key in sorted({*old_choices, *new_choices}):
        text = _difference(old_choices.get(key, NOTHING), new_choices.get(key, NOTHING))
        if text:
            changes.append(f"{key[0]} ({', '.join(dict.fromkeys(key[1]))}): {text}")
    return tuple(changes)


def _choices(lock: Lock) -> dict[Key, Choice]:
    found: dict[Key, Choice] = {}
    for gap in lock.gaps:
        found[(gap.operator, gap.dtypes)] = Choice("an open gap", "", gap.signatures, "")
    for entry in lock.entries:
        key = (entry.operator, entry.dtypes)
        found[key] = Choice(str(entry.identity), entry.source_hash, entry.signatures, entry.origin)
    return found


def _difference(old: Choice, new: Choice) -> str:
    if old.what != new.what:
        return f"{old.what} before, {new.what} now"
    if old.source_hash != new.source_hash:
        return f"the source of {new.what} was {old.source_hash[:19]}, {new.origin} is {new.source_hash[:19]} now"
    if old.signatures != new.signatures:
        gone, come = {*old.signatures} - {*new.signatures}, {*new.signatures} - {*old.signatures}
        return f"{new.what}: {len(come)} signatures more, {len(gone)} fewer"
    return ""

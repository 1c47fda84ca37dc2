"""Two locks: other implementations for the same calls, gaps that opened or closed."""

from __future__ import annotations

from day0.analyzers.diff.change import Change, Effect, Part, most, ordered
from day0.records import Gap, Lock, LockEntry

__all__ = ["RECORD", "compare"]

RECORD = Lock

KINDS = ("gap opened", "gap closed", "implementation", "code", "no longer needed", "now needed")

LEVEL = {"kernel": 0, "decomposition": 0, "reference": 1, "cpu_fallback": 2}

Key = tuple[str, tuple[str, ...]]


def compare(old: Lock, new: Lock) -> Part:
    """Compare two locks. An open gap, and a slower kind of implementation, are worse."""
    a = {(one.operator, one.dtypes): one for one in old.entries}
    b = {(one.operator, one.dtypes): one for one in new.entries}
    gaps_a = {(one.operator, one.dtypes): one for one in old.gaps}
    gaps_b = {(one.operator, one.dtypes): one for one in new.gaps}
    changes = [_gap("gap opened", "worse", gaps_b[key], a.get(key)) for key in gaps_b.keys() - gaps_a.keys()]
    changes += [_gap("gap closed", "better", gaps_a[key], b.get(key)) for key in gaps_a.keys() - gaps_b.keys()]
    changes += [one for key in a.keys() & b.keys() if (one := _replaced(a[key], b[key])) is not None]
    changes += [_alone("now needed", b[key]) for key in b.keys() - a.keys() - gaps_a.keys()]
    changes += [_alone("no longer needed", a[key]) for key in a.keys() - b.keys() - gaps_b.keys()]
    same = sum(_replaced(a[key], b[key]) is None for key in a.keys() & b.keys())
    summary = f"chosen {len(a)} → {len(b)}, open gaps {len(gaps_a)} → {len(gaps_b)}"
    return Part(name="register", summary=summary, same=same, changes=ordered(changes, KINDS))


def _gap(kind: str, effect: Effect, gap: Gap, other: LockEntry | None) -> Change:
    text = str(other.identity) if other else "not called"
    old, new = (text, "nothing") if effect == "worse" else ("nothing", text)
    return Change(
        kind=kind,
        effect=effect,
        subject=gap.operator,
        old=old,
        new=new,
        where=most(gap.dtypes, 3),
        reason=gap.reason,
        calls=gap.calls,
        weight=gap.calls,
    )


def _replaced(old: LockEntry, new: LockEntry) -> Change | None:
    where = most(new.dtypes, 3)
    if old.identity != new.identity or old.kind != new.kind:
        step = LEVEL[new.kind] - LEVEL[old.kind]
        effect: Effect = "worse" if step > 0 else "better" if step < 0 else "other"
        texts = [f"{one.identity} ({one.kind})" for one in (old, new)]
        return Change(
            kind="implementation", effect=effect, subject=new.operator, old=texts[0], new=texts[1], where=where
        )
    if old.source_hash != new.source_hash:
        hashes = [one.source_hash.removeprefix("sha256:")[:12] for one in (old, new)]
        return Change(kind="code", subject=new.operator, old=hashes[0], new=hashes[1], where=where, reason=new.origin)
    return None


def _alone(kind: str, entry: LockEntry) -> Change:
    text = f"{entry.identity} ({entry.kind})"
    old, new = ("", text) if kind == "now needed" else (text, "")
    return Change(kind=kind, subject=entry.operator, old=old, new=new, where=most(entry.dtypes, 3))

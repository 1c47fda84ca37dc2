"""Two inventories: what became missing or was closed, changed verdict or dtype, moved in the ranking."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from day0.analyzers.diff.change import Change, Effect, Part, layer_free, most, ordered
from day0.records import Inventory, InventoryEntry

__all__ = ["RECORD", "compare"]

RECORD = Inventory

KINDS = ("new gap", "verdict", "gap closed", "gap gone", "dtype", "share", "time")

LEVEL = {
    "native": 0,
    "out_wrapper": 0,
    "decomposes": 0,
    "replaced": 1,
    "decomposes_with_sync": 2,
    "cpu_fallback": 3,
    "missing": 4,
    "leaf_missing": 4,
    "unknown": 4,
    "crashes": 5,
}
"""How bad a verdict is; changes within a level are neither better nor worse."""

TOP = 10
"""Ranks that are looked at."""
MOVED_SHARE = 0.01
"""A share of the time that moved by less is no news."""
MOVED_TIME = 0.02

Pair = tuple[InventoryEntry, InventoryEntry]


def compare(old: Inventory, new: Inventory) -> Part:
    """Compare two inventories. A gap that was none, and a worse verdict, are worse."""
    pairs, only_old, only_new = _match(old.entries, new.entries)
    verdicts = [pair for pair in pairs if _verdicts(pair[0]) != _verdicts(pair[1])]
    changes = [*_verdict_changes(verdicts), *_dtype_changes(pairs)]
    changes += _alone("new gap", "worse", [one for one in only_new if one.is_gap and one.verdict != "replaced"])
    changes += _alone("gap gone", "better", [one for one in only_old if one.is_gap and one.verdict != "replaced"])
    changes += [*_ranks(old, new), *_time(old, new)]
    same = sum(a.id == b.id and _verdicts(a) == _verdicts(b) for a, b in pairs)
    return Part(name="inventory", summary=_summary(old, new), same=same, changes=ordered(changes, KINDS))


def _match(
    old: Iterable[InventoryEntry], new: Iterable[InventoryEntry]
) -> tuple[list[Pair], list[InventoryEntry], list[InventoryEntry]]:
    """Pair by signature, then by operator and sizes whatever the dtype, then by operator and dtypes."""
    pairs: list[Pair] = []
    left_old, left_new = list(old), list(new)
    for key in (lambda e: e.id, lambda e: (e.op, _sizes(e)), lambda e: (e.op, e.dtypes)):
        waiting: dict[object, list[InventoryEntry]] = defaultdict(list)
        for one in left_new:
            waiting[key(one)].append(one)
        left = []
        for one in left_old:
            if waiting[key(one)]:
                pairs.append((one, waiting[key(one)].pop(0)))
            else:
                left.append(one)
        left_old, left_new = left, [one for group in waiting.values() for one in group]
    return pairs, left_old, left_new


def _sizes(entry: InventoryEntry) -> str:
    return " ".join(part.partition("[")[2] for part in entry.shapes.split(" ") if "[" in part)


def _verdicts(entry: InventoryEntry) -> tuple[str, str]:
    return entry.device_verdict, entry.verdict


def _text(entry: InventoryEntry) -> str:
    return entry.device_verdict if entry.verdict == entry.device_verdict else f"{entry.device_verdict}, {entry.verdict}"


def _verdict_changes(pairs: list[Pair]) -> list[Change]:
    groups: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    for a, b in pairs:
        groups[(b.op, _text(a), _text(b))].append((a, b))
    found = []
    for (op, before, after), members in groups.items():
        a, b = members[0]
        step = LEVEL[b.verdict] - LEVEL[a.verdict] or LEVEL[b.device_verdict] - LEVEL[a.device_verdict]
        kind = "new gap" if b.is_gap and not a.is_gap else "gap closed" if a.is_gap and not b.is_gap else "verdict"
        effect: Effect = "worse" if step > 0 else "better" if step < 0 else "other"
        entries = [one for _, one in members]
        found.append(_change(kind, effect, op, before, after, entries))
    return found


def _alone(kind: str, effect: Effect, entries: list[InventoryEntry]) -> list[Change]:
    groups: dict[tuple[str, str], list[InventoryEntry]] = defaultdict(list)
    for one in entries:
        groups[(one.op, _text(one))].append(one)
    new = effect == "worse"
    absent = "not called"
    return [
        _change(kind, effect, op, absent if new else text, text if new else absent, members)
        for (op, text), members in groups.items()
    ]


def _change(kind: str, effect: Effect, op: str, old: str, new: str, entries: list[InventoryEntry]) -> Change:
    return Change(
        kind=kind,
        effect=effect,
        subject=op,
        old=old,
        new=new,
        where=most(layer_free(one.module) for one in entries),
        reason=entries[0].reason,
        calls=sum(one.calls for one in entries),
        weight=sum(one.share for one in entries),
    )


def _dtype_changes(pairs: list[Pair]) -> list[Change]:
    groups: dict[tuple[str, str, str], list[InventoryEntry]] = defaultdict(list)
    for a, b in pairs:
        if a.dtypes != b.dtypes:
            groups[(b.op, " ".join(a.dtypes), " ".join(b.dtypes))].append(b)
    return [_change("dtype", "other", op, a, b, members) for (op, a, b), members in groups.items()]


def _ranks(old: Inventory, new: Inventory) -> list[Change]:
    """Return the operators among the first of either side whose share of the time moved, with their ranks."""
    a, b = _shares(old), _shares(new)
    place_a = {op: number for number, op in enumerate(a, start=1)}
    place_b = {op: number for number, op in enumerate(b, start=1)}
    found = []
    for op in dict.fromkeys([*list(b)[:TOP], *list(a)[:TOP]]):
        before, after = a.get(op, 0.0), b.get(op, 0.0)
        if abs(after - before) >= MOVED_SHARE:
            sides = ((place_a, before), (place_b, after))
            texts = [f"#{place[op]} {share:.1%}" if op in place else "not called" for place, share in sides]
            found.append(Change(kind="share", subject=op, old=texts[0], new=texts[1], weight=abs(after - before)))
    return found


def _shares(inventory: Inventory) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for one in inventory.entries:
        totals[one.op] += one.share
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def _time(old: Inventory, new: Inventory) -> list[Change]:
    a, b = old.roofline_seconds, new.roofline_seconds
    if abs(b - a) <= MOVED_TIME * max(a, b):
        return []
    texts = [f"{value * 1e3:,.3f} ms" for value in (a, b)]
    return [Change(kind="time", subject="roofline time of all phases", old=texts[0], new=texts[1], weight=abs(b - a))]


def _summary(old: Inventory, new: Inventory) -> str:
    def gaps(inventory: Inventory) -> tuple[int, float]:
        open_ = [one for one in inventory.entries if one.is_gap]
        return len({one.op for one in open_}), sum(one.share for one in open_)

    (a, share_a), (b, share_b) = gaps(old), gaps(new)
    device = old.device if old.device == new.device else f"{old.device} → {new.device}"
    return f"on {device}: operators with gaps {a} → {b}, their share of the time {share_a:.1%} → {share_b:.1%}"

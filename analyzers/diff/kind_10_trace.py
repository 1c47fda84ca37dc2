"""Two traces: which calls appeared and disappeared, changed dtype or sizes, count, module, phase, or wait for the host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from day0.analyzers.diff.change import Change, Effect, Part, layer_free, most, ordered
from day0.records import ListValue, Signature, TensorValue, Trace, TraceEntry, Value
from day0.reference_ops.signatures import shapes_text, tensor_values

__all__ = ["RECORD", "compare", "work"]

RECORD = Trace

KINDS = ("model", "phase", "host sync", "appeared", "disappeared", "dtype", "sizes", "module", "calls")
"""In the order of the screen. `appeared` and `disappeared`: the operator, or only these calls of it (see the reason)."""


def compare(old: Trace, new: Trace) -> Part:
    """Compare two traces. Only a new wait for the host is worse in itself: the inventory judges the rest."""
    pairs, only_old, only_new = _match(old.entries, new.entries)
    changes = [*_models(old, new), *_phases(old, new)]
    for a, b in pairs:
        changes += _moved(a, b)
    by_dtype, only_old, only_new = _pair(only_old, only_new, lambda one: (one.signature.op, _without_dtypes(one)))
    by_size, only_old, only_new = _pair(only_old, only_new, lambda one: (one.signature.op, _place(one), _dtypes(one)))
    # The same calls of another place in the model differ in sizes as a rule; without modules there is no other key.
    rest, only_old, only_new = _pair(only_old, only_new, lambda one: (one.signature.op, _dtypes(one)))
    changes += _grouped("dtype", by_dtype, _dtypes_text)
    changes += _grouped("sizes", [*by_size, *rest], lambda one: shapes_text(one.signature))
    known_old = {one.signature.op for one in old.entries}
    known_new = {one.signature.op for one in new.entries}
    changes += _alone("appeared", only_new, known_old)
    changes += _alone("disappeared", only_old, known_new)
    return Part(name="trace", summary=_summary(old, new), same=_same(pairs), changes=ordered(changes, KINDS))


def work(entry: TraceEntry) -> float:
    """Return the work of all calls of a signature in bytes, with 200 FLOPs for one byte: for ranking alone."""
    return sum(entry.counts.values()) * (entry.bytes + entry.flops / 200.0)


def _match(
    old: Iterable[TraceEntry], new: Iterable[TraceEntry]
) -> tuple[list[tuple[TraceEntry, TraceEntry]], list[TraceEntry], list[TraceEntry]]:
    return _pair(old, new, lambda one: one.id)


def _pair(
    old: Iterable[TraceEntry], new: Iterable[TraceEntry], key: Callable[[TraceEntry], Hashable]
) -> tuple[list[tuple[TraceEntry, TraceEntry]], list[TraceEntry], list[TraceEntry]]:
    """Pair entries with equal keys, in their order; return the pairs and what is left on either side."""
    waiting: dict[Hashable, list[TraceEntry]] = defaultdict(list)
    for one in new:
        waiting[key(one)].append(one)
    pairs, left = [], []
    for one in old:
        partners = waiting[key(one)]
        if partners:
            pairs.append((one, partners.pop(0)))
        else:
            left.append(one)
    return pairs, left, [one for group in waiting.values() for one in group]


def _models(old: Trace, new: Trace) -> list[Change]:
    a, b = old.model, new.model
    facts = (
        ("source", a.source, b.source),
        ("class", a.class_name, b.class_name),
        ("dtype of the weights", a.dtype, b.dtype),
        ("parameters", f"{a.parameters:,}", f"{b.parameters:,}"),
        ("mode", old.mode, new.mode),
        ("recorded on", old.device, new.device),
    )
    return [Change(kind="model", subject=name, old=x, new=y) for name, x, y in facts if x != y]


def _phases(old: Trace, new: Trace) -> list[Change]:
    def text(trace: Trace) -> dict[str, str]:
        return {one.name: f"batch {one.batch}, {one.tokens:,} tokens after {one.context:,}" for one in trace.phases}

    a, b = text(old), text(new)
    names = dict.fromkeys([*a, *b])
    return [
        Change(kind="phase", subject=name, old=a.get(name, "not there"), new=b.get(name, "not there"))
        for name in names
        if a.get(name) != b.get(name)
    ]


def _moved(old: TraceEntry, new: TraceEntry) -> list[Change]:
    """Return what changed about one signature that both have."""
    found: list[Change] = []

    def add(kind: str, before: str, after: str, effect: Effect = "other") -> None:
        found.append(
            Change(
                kind=kind,
                effect=effect,
                subject=old.signature.op,
                old=before,
                new=after,
                where=_place(new),
                reason=shapes_text(new.signature),
                calls=sum(new.counts.values()),
                weight=work(new),
            )
        )

    if old.host_sync != new.host_sync:
        words = {True: "waits for the host", False: "does not wait"}
        add("host sync", words[old.host_sync], words[new.host_sync], "worse" if new.host_sync else "better")
    if _place(old) != _place(new):
        add("module", _place(old) or "model", _place(new) or "model")
    if old.counts != new.counts:
        add("calls", _counts_text(old), _counts_text(new))
    return found


def _same(pairs: list[tuple[TraceEntry, TraceEntry]]) -> int:
    return sum(not _moved(a, b) for a, b in pairs)


@dataclass(kw_only=True, slots=True)
class _Group:
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    calls: int = 0
    weight: float = 0.0
    members: int = 0


def _grouped(kind: str, pairs: list[tuple[TraceEntry, TraceEntry]], text: Callable[[TraceEntry], str]) -> list[Change]:
    """Make one change of all pairs of one operator with the same texts, or, for sizes, in the same place."""
    groups: dict[Hashable, _Group] = defaultdict(_Group)
    for a, b in pairs:
        by = (text(a), text(b)) if kind == "dtype" else (_place(b),)
        group = groups[(a.signature.op, *by)]
        group.old.append(text(a))
        group.new.append(text(b))
        group.places.append(_place(b))
        group.calls += sum(b.counts.values())
        group.weight += work(b)
        group.members += 1
    return [
        Change(
            kind=kind,
            subject=str(key[0]) if isinstance(key, tuple) else "",
            old=most(group.old, 1),
            new=most(group.new, 1),
            where=most(group.places),
            reason=f"{group.members} signatures" if group.members > 1 else "",
            calls=group.calls,
            weight=group.weight,
        )
        for key, group in groups.items()
    ]


def _alone(kind: str, entries: list[TraceEntry], known: set[str]) -> list[Change]:
    """Make one change per operator and place of what only one side has."""
    groups: dict[tuple[str, str], list[TraceEntry]] = defaultdict(list)
    for one in entries:
        groups[(one.signature.op, _place(one))].append(one)
    found = []
    for (op, place), members in groups.items():
        text = most((shapes_text(one.signature) for one in members), 1)
        calls = sum(sum(one.counts.values()) for one in members)
        other = "" if op not in known else "other calls of it are in both"
        before, after = ("", text) if kind == "appeared" else (text, "")
        weight = sum(work(one) for one in members)
        # An operator that is new to the model comes before new calls of a known one.
        found.append(
            Change(
                kind=kind,
                subject=op,
                old=before,
                new=after,
                where=place,
                reason=other,
                calls=calls,
                weight=weight if other else weight + 1e30,
            )
        )
    return found


def _place(entry: TraceEntry) -> str:
    return layer_free(entry.module)


def _counts_text(entry: TraceEntry) -> str:
    return ", ".join(f"{count:,} {phase}" for phase, count in sorted(entry.counts.items()))


def _dtypes(entry: TraceEntry) -> tuple[str, ...]:
    return tuple(value.dtype for value in tensor_values(entry.signature))


def _dtypes_text(entry: TraceEntry) -> str:
    values = (*entry.signature.args, *entry.signature.kwargs.values())
    casts = [f"to {value.value}" for value in values if value.kind == "scalar" and value.type == "dtype"]
    return " ".join([*_dtypes(entry), *casts]) or "no tensors"


def _without_dtypes(entry: TraceEntry) -> str:
    blank = Signature(
        op=entry.signature.op,
        args=tuple(_blank(value) for value in entry.signature.args),
        kwargs={name: _blank(value) for name, value in entry.signature.kwargs.items()},
    )
    return blank.model_dump_json()


def _blank(value: Value) -> Value:
    if isinstance(value, ListValue):
        return ListValue(items=tuple(_blank(item) for item in value.items))
    if isinstance(value, TensorValue):
        return value.model_copy(update={"dtype": "", "range": None})
    return value.model_copy(update={"value": ""}) if value.type == "dtype" else value


def _summary(old: Trace, new: Trace) -> str:
    def facts(trace: Trace) -> tuple[int, int, int]:
        operators = {one.signature.op for one in trace.entries}
        return len(operators), len(trace.entries), sum(sum(one.counts.values()) for one in trace.entries)

    words = ("operators", "signatures", "calls")
    return ", ".join(
        f"{a:,} {word}" if a == b else f"{a:,} → {b:,} {word}"
        for word, a, b in zip(words, facts(old), facts(new), strict=True)
    )

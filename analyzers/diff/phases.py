"""Two phases of one trace: which operators only one of them calls, where, and what other sizes cost.

A trace names for each signature the first module that made it, so the calls of an operator are counted over the whole
model: only a total that differs is another path of the code. Where it differs is then read from the modules.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from day0.analyzers.diff.change import Change, Part, arrow, layer_free, most, ordered
from day0.errors import Day0Error, near_names
from day0.records import PhaseInfo, Trace, TraceEntry
from day0.reference_ops.signatures import shapes_text

__all__ = ["compare_phases"]

KINDS = ("only in one", "calls", "sizes")

PER_CLASS = 2
"""Operators of a module class whose sizes are shown: those with most work."""


def compare_phases(trace: Trace, first: str, second: str) -> Part:
    """Compare two phases. Raises Day0Error for a phase that the trace does not have, and for a phase with itself."""
    a, b = _phase(trace, first), _phase(trace, second)
    if first == second:
        raise Day0Error("--phases", f"'{first}' is compared with itself", hint="name two phases")
    changes = _paths(trace.entries, first, second)
    moved = {one.subject for one in changes}
    changes += _sizes(trace.entries, first, second)
    operators = {one.signature.op for one in trace.entries if first in one.counts or second in one.counts}
    tokens = ", ".join(f"{one.name} {one.tokens:,} tokens after {one.context:,}" for one in (a, b))
    summary = f"{tokens}; {arrow(a.calls, b.calls)} calls"
    same = len(operators - moved)
    return Part(name=f"phases {first} and {second}", summary=summary, same=same, changes=ordered(changes, KINDS))


def _phase(trace: Trace, name: str) -> PhaseInfo:
    for one in trace.phases:
        if one.name == name:
            return one
    names = tuple(one.name for one in trace.phases)
    hint = near_names(name, names) or f"the trace has {', '.join(names)}"
    raise Day0Error("--phases", f"there is no phase '{name}' in the trace", hint=hint)


def _paths(entries: Iterable[TraceEntry], first: str, second: str) -> list[Change]:
    """Return the operators that the phases do not call equally often, with the modules where they differ."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    by_class: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    shapes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in entries:
        for phase in (first, second):
            if phase in one.counts:
                totals[one.signature.op][phase] += one.counts[phase]
                by_class[one.signature.op][(_class(one), phase)] += one.counts[phase]
                shapes[(one.signature.op, phase)].append(shapes_text(one.signature))
    found = []
    for op, counts in totals.items():
        a, b = counts[first], counts[second]
        if a == b:
            continue
        classes = dict.fromkeys(name for name, _ in by_class[op])
        places = [
            f"{name} {arrow(by_class[op][(name, first)], by_class[op][(name, second)])}"
            for name in classes
            if by_class[op][(name, first)] != by_class[op][(name, second)]
        ]
        found.append(
            Change(
                kind="only in one" if 0 in (a, b) else "calls",
                subject=op,
                old=f"{a:,}",
                new=f"{b:,}",
                where=most(places, 3),
                reason=most(shapes[(op, first if a else second)], 1) if 0 in (a, b) else "",
                weight=abs(a - b),
            )
        )
    return found


def _sizes(entries: Iterable[TraceEntry], first: str, second: str) -> list[Change]:
    """Return, for each class of modules, what its heaviest operators are given in either phase."""
    groups: dict[tuple[str, str], list[TraceEntry]] = defaultdict(list)
    for one in entries:
        groups[(_class(one), one.signature.op)].append(one)
    by_class: dict[str, list[Change]] = defaultdict(list)
    for (name, op), members in groups.items():
        # Heaviest first, so that the shapes that are shown are of the same call in both.
        members.sort(key=_work, reverse=True)
        sides = [[one for one in members if phase in one.counts] for phase in (first, second)]
        texts = [most((shapes_text(one.signature) for one in side), 1) for side in sides]
        if not all(sides) or texts[0] == texts[1]:
            continue
        work = [
            sum(_work(one) * one.counts[phase] for one in side)
            for side, phase in zip(sides, (first, second), strict=True)
        ]
        by_class[name].append(
            Change(
                kind="sizes",
                subject=op,
                old=texts[0],
                new=texts[1],
                where=f"{name} {layer_free(members[0].module)}".strip(),
                reason=_intensity(sides[0], sides[1], first, second),
                calls=sum(sum(one.counts.values()) for one in members),
                weight=max(work),
            )
        )
    chosen: list[Change] = []
    for changes in by_class.values():
        heaviest = sorted(changes, key=lambda one: -one.weight)
        chosen += [one for one in heaviest[:PER_CLASS] if one.weight]
    return chosen


def _intensity(old: list[TraceEntry], new: list[TraceEntry], first: str, second: str) -> str:
    """Return FLOPs for each byte of either side: what is bound by arithmetic in prefill waits for memory in decode."""
    values = []
    for side, phase in ((old, first), (new, second)):
        flops = sum(one.flops * one.counts[phase] for one in side)
        moved = sum(one.bytes * one.counts[phase] for one in side)
        values.append(flops / moved if moved else 0.0)
    return f"{arrow(values[0], values[1], ',.1f')} FLOPs a byte" if any(values) else ""


def _work(entry: TraceEntry) -> float:
    return entry.bytes + entry.flops / 200.0


def _class(entry: TraceEntry) -> str:
    return entry.module_class or "model"

"""One trace from runs in different modes: text on meta, say, and images where values are needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from day0.records import CallEntry, Site, TraceEntry

__all__ = ["merge_calls", "merge_entries"]

E = TypeVar("E", TraceEntry, CallEntry)


def merge_entries(runs: Sequence[tuple[TraceEntry, ...]]) -> tuple[TraceEntry, ...]:
    """Put the operators of several runs together; a signature that two of them saw is one entry."""
    if len(runs) == 1:
        return runs[0]
    entries: dict[str, TraceEntry] = {}
    shift = 0
    for run in runs:
        highest = max((site.number for entry in run for site in entry.sites), default=-1)
        for entry in run:
            # Every run counts its sites from zero.
            moved = entry.model_copy(update={"sites": tuple(_shifted(site, shift) for site in entry.sites)})
            seen = entries.get(entry.id)
            entries[entry.id] = moved if seen is None else _joined(seen, moved)
        shift += highest + 1
    return _sorted(entries.values())


def merge_calls(runs: Sequence[tuple[CallEntry, ...]]) -> tuple[CallEntry, ...]:
    """Put the functions of several runs together, likewise."""
    if len(runs) == 1:
        return runs[0]
    entries: dict[str, CallEntry] = {}
    for entry in (entry for run in runs for entry in run):
        seen = entries.get(entry.id)
        if seen is not None:
            entry = entry.model_copy(update={**_counts(seen, entry), "ops": _sum(seen.ops, entry.ops)})
        entries[entry.id] = entry
    return _sorted(entries.values())


def _joined(one: TraceEntry, two: TraceEntry) -> TraceEntry:
    links = {"calls": tuple(sorted({*one.calls, *two.calls})), "sites": (*one.sites, *two.sites)}
    return one.model_copy(update={**_counts(one, two), **links})


def _counts(one: E, two: E) -> dict[str, object]:
    return {
        "counts": _sum(one.counts, two.counts),
        "modules": max(one.modules, two.modules),
        "host_sync": one.host_sync or two.host_sync,
    }


def _sum(one: dict[str, int], two: dict[str, int]) -> dict[str, int]:
    total = Counter(one)
    total.update(two)
    return dict(sorted(total.items()))


def _shifted(site: Site, by: int) -> Site:
    inputs = {str(int(number) + by): count for number, count in site.inputs.items()}
    return site.model_copy(update={"number": site.number + by, "inputs": inputs})


def _sorted(entries: Iterable[E]) -> tuple[E, ...]:
    return tuple(sorted(entries, key=lambda e: (-sum(e.counts.values()), e.signature.op, e.id)))

"""What the recorder keeps of each signature while a model runs, and the records made of it afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from day0.analyzers.recording.memo import Recipe
from day0.analyzers.sites import SiteTally
from day0.records import CallEntry, Collective, FloatStats, Signature, TraceEntry, Value
from day0.reference_ops.signatures import signature_id

__all__ = ["CallRow", "OpRow", "call_entries", "op_entries"]


@dataclass(kw_only=True, eq=False)
class _Row:
    signature: Signature
    outputs: tuple[Value, ...]
    output_aliases: tuple[tuple[str, ...], ...]
    host_sync: bool
    source: str
    module: str
    module_class: str
    modules: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    sites: dict[str, SiteTally] = field(default_factory=dict)

    def absorb(self, other: _Row) -> None:
        """Take in a row of the same signature: a key knows more than a record does, such as the device."""
        for phase, times in other.counts.items():
            self.counts[phase] = self.counts.get(phase, 0) + times
        self.modules |= other.modules
        # Sites are named by number in those that they feed, so two of one chain stay two.
        self.sites |= {f"{chain} {site.number}": site for chain, site in other.sites.items()}
        self.host_sync |= other.host_sync

    def count(self, phase: str, module: str | None) -> None:
        """Note one more call."""
        self.counts[phase] = self.counts.get(phase, 0) + 1
        if module is not None:
            self.modules.add(module)

    @cached_property
    def id(self) -> str:
        """The id of the signature; asked for only after the run, when nothing changes any more."""
        return signature_id(self.signature)


@dataclass(kw_only=True, eq=False)
class OpRow(_Row):
    """One operator signature."""

    mutates: tuple[str, ...]
    flops: int
    bytes: int
    ranged: bool
    """It has integer arguments whose range has to be widened by each call."""
    collective: Collective | None = None
    recipe: Recipe | None = None
    stats: dict[str, FloatStats] = field(default_factory=dict)


@dataclass(kw_only=True, eq=False)
class CallRow(_Row):
    """One function signature, and the operators that ran below it."""

    below: dict[OpRow, int] = field(default_factory=dict)

    def absorb(self, other: _Row) -> None:
        """Take in the operators below, too."""
        super().absorb(other)
        if isinstance(other, CallRow):
            self.below = {row: self.below.get(row, 0) + other.below.get(row, 0) for row in (*self.below, *other.below)}

    def mean(self, cost: str) -> int:
        """Return what one call costs on average."""
        total = sum(int(getattr(row, cost)) * times for row, times in self.below.items())
        return round(total / max(1, sum(self.counts.values())))


R = TypeVar("R", OpRow, CallRow)


def op_entries(rows: Iterable[OpRow], calls: Iterable[CallRow]) -> tuple[TraceEntry, ...]:
    """Return the operators, most often called first, then by name and id; each names the calls it stands below."""
    above: dict[str, set[str]] = {}
    for call in calls:
        for row in call.below:
            above.setdefault(row.id, set()).add(call.id)
    entries = [_op_entry(row, above.get(row.id, set())) for row in _merged(rows)]
    return tuple(sorted(entries, key=lambda e: (-sum(e.counts.values()), e.signature.op, e.id)))


def _merged(rows: Iterable[R]) -> list[R]:
    kept: dict[str, R] = {}
    for row in rows:
        if row.id in kept:
            kept[row.id].absorb(row)
        else:
            kept[row.id] = replace(row, counts=dict(row.counts), modules=set(row.modules), sites=dict(row.sites))
    return list(kept.values())


def _op_entry(row: OpRow, calls: set[str]) -> TraceEntry:
    return TraceEntry(
        id=row.id,
        signature=row.signature,
        outputs=row.outputs,
        counts=dict(sorted(row.counts.items())),
        mutates=row.mutates,
        module=row.module,
        module_class=row.module_class,
        modules=max(1, len(row.modules)),
        source=row.source,
        host_sync=row.host_sync,
        flops=row.flops,
        bytes=row.bytes,
        output_aliases=row.output_aliases,
        calls=tuple(sorted(calls)),
        stats=dict(sorted(row.stats.items())),
        collective=row.collective,
        sites=tuple(site.record() for site in row.sites.values()),
    )


def call_entries(rows: Iterable[CallRow]) -> tuple[CallEntry, ...]:
    """Return the functions in the same order; each lists its operators with how often they ran."""
    entries = [_call_entry(row) for row in _merged(rows)]
    return tuple(sorted(entries, key=lambda e: (-sum(e.counts.values()), e.signature.op, e.id)))


def _call_entry(row: CallRow) -> CallEntry:
    ops: dict[str, int] = {}
    for below, times in row.below.items():
        ops[below.id] = ops.get(below.id, 0) + times
    return CallEntry(
        id=row.id,
        signature=row.signature,
        outputs=row.outputs,
        counts=dict(sorted(row.counts.items())),
        ops=dict(sorted(ops.items())),
        output_aliases=row.output_aliases,
        module=row.module,
        module_class=row.module_class,
        modules=max(1, len(row.modules)),
        source=row.source,
        host_sync=row.host_sync or any(one.host_sync for one in row.below),
        flops=row.mean("flops"),
        bytes=row.mean("bytes"),
    )

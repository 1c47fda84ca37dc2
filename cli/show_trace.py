"""The levels of a trace for people: functions with the operators below them, shapes with their counts, ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Literal, get_args

from rich.markup import escape
from rich.table import Table

from day0.cli.failures import clean
from day0.cli.talk import Talk
from day0.errors import Day0Error
from day0.records import CallEntry, Trace

__all__ = ["View", "levels"]

Level = Literal["both", "call", "op"]
TOP = 15
BELOW = 4
"""Operators named beside a function; the record holds all of them."""
BAR = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What of a trace to show."""

    level: Level = "both"
    shapes: tuple[str, ...] = ()

    @staticmethod
    def of(level: str, shapes: list[str]) -> View:
        """Read it from flags. Raises Day0Error for a level that there is not."""
        for known in get_args(Level):
            if level == known:
                return View(level=known, shapes=tuple(shapes))
        raise Day0Error("--level", f"'{level}' is not a level", hint=f"use one of: {', '.join(get_args(Level))}")


def levels(talk: Talk, trace: Trace, view: View) -> None:
    """Show what the table of operators does not: the level above it, who waits, and what goes between ranks."""
    if view.level != "op":
        _calls(talk, trace)
    _adapted(talk, trace)
    _syncs(talk, trace)
    _ranks(talk, trace)
    for name in view.shapes:
        _shapes(talk, trace, name)


def _adapted(talk: Talk, trace: Trace) -> None:
    if not trace.model.adapted:
        return
    table = _table("adapter", "modules that call day0's operators")
    for name, modules in sorted(trace.model.adapted.items()):
        table.add_row(_safe(name), _safe(modules))
    talk.say("")
    talk.out.print(table)


def _safe(text: object) -> str:
    return escape(clean(str(text)))


def _table(*columns: str, caption: str = "") -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", caption=caption or None, caption_justify="left")
    for name in columns:
        right = name in {"calls", "signatures", "gflop", "times", "MB", "ranks"}
        whole = name in {"function", "shapes"}  # a name or a shape that is broken cannot be read
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=whole)
    return table


def _short(name: str) -> str:
    for prefix in ("torch.nn.functional.", "torch.Tensor.", "torch.functional."):
        if name.startswith(prefix):
            return {"torch.nn.functional.": "F.", "torch.Tensor.": "Tensor."}.get(prefix, "torch.") + name[
                len(prefix) :
            ]
    return name


def _calls(talk: Talk, trace: Trace) -> None:
    if not trace.calls:
        talk.say("\n[dim]no functions were recorded: the trace is of an older day0, or none was called[/dim]")
        return
    groups: dict[str, list[CallEntry]] = defaultdict(list)
    for entry in trace.calls:
        groups[entry.signature.op].append(entry)
    names = {entry.id: entry.signature.op for entry in trace.entries}
    rest = f"{len(groups)} functions in all" if len(groups) > TOP else ""
    table = _table("function", "calls", "gflop", "operators below", caption=rest)
    for name, members in sorted(groups.items(), key=lambda item: (-_cost(item[1]), -_count(item[1])))[:TOP]:
        flops = _cost(members)
        gflop = f"{flops / 1e9:,.3f}" if flops else ""
        table.add_row(_safe(_short(name)), f"{_count(members):,}", gflop, _safe(_below(members, names)))
    talk.say("")
    talk.out.print(table)


def _count(members: list[CallEntry]) -> int:
    return sum(sum(one.counts.values()) for one in members)


def _cost(members: list[CallEntry]) -> int:
    return sum(one.flops * sum(one.counts.values()) for one in members)


def _below(members: list[CallEntry], names: dict[str, str]) -> str:
    counts: Counter[str] = Counter()
    for one in members:
        for number, times in one.ops.items():
            counts[names.get(number, number).removeprefix("aten::").partition(".")[0]] += times
    parts = [f"{times:,} {name}" for name, times in counts.most_common(BELOW)]
    return ", ".join(parts) + (f" and {len(counts) - BELOW} more" if len(counts) > BELOW else "")


def _syncs(talk: Talk, trace: Trace) -> None:
    waits = [entry for entry in trace.calls if entry.host_sync]
    if not waits:
        return
    table = _table("the host waits in", "calls", "module", "line")
    for entry in sorted(waits, key=lambda one: -_count([one]))[:TOP]:
        table.add_row(
            _safe(_short(entry.signature.op)), f"{_count([entry]):,}", _safe(entry.module), _safe(entry.source)
        )
    talk.say("")
    talk.out.print(table)


def _ranks(talk: Talk, trace: Trace) -> None:
    info = trace.parallel
    if info is None:
        return
    size = f"{info.parameters / 1e9:,.2f} billion" if info.parameters >= 1e8 else f"{info.parameters:,}"
    share = info.parameters / max(1, trace.model.parameters)
    talk.say(
        f"\nrank {info.rank} of {info.world_size}: {size} parameters ({share:.1%} of all), "
        f"{info.parameter_bytes / 2**30:,.2f} GiB; {len(info.plan)} rules of the plan applied, {len(info.unused)} unused"
    )
    table = _table("between ranks", "phase", "times", "MB", "module", caption="MB: what a rank sends around a ring")
    rows = [(e, phase, times) for e in trace.entries if e.collective for phase, times in e.counts.items()]
    for entry, phase, times in sorted(rows, key=lambda row: (row[1], -row[2]))[:TOP]:
        sent = (entry.collective.wire_bytes if entry.collective else 0) * times / 1e6
        kind = entry.collective.kind if entry.collective else ""
        table.add_row(kind, _safe(phase), f"{times:,}", f"{sent:,.2f}", _safe(entry.module))
    talk.say("")
    talk.out.print(table)


def _shapes(talk: Talk, trace: Trace, name: str) -> None:
    from day0.analyzers.histogram import shape_histogram

    rows = shape_histogram(trace, name)
    most = max(row.calls for row in rows)
    order = [phase.name for phase in trace.phases]
    for op in dict.fromkeys(row.name for row in rows):
        members = [row for row in rows if row.name == op]
        rest = f"{len(members)} combinations in all" if len(members) > TOP else ""
        table = _table("calls", "", "shapes", "phases", caption=rest)
        for row in members[:TOP]:
            bar = "█" * max(1, round(BAR * row.calls / most))
            phases = ", ".join(f"{phase} {row.counts[phase]:,}" for phase in order if phase in row.counts)
            table.add_row(f"{row.calls:,}", bar, _safe(row.shapes.replace(", ", ",")), _safe(phases))
        talk.say(f"\n[bold]{_safe(op)}[/bold]")
        talk.out.print(table)

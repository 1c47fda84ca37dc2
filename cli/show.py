"""Records for people: lines and tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from day0.analyzers.resident import peak_resident
from day0.cli import show_canary, show_check, show_inventory
from day0.cli.failures import clean
from day0.cli.rundir import RunFolder
from day0.cli.stages import STAGES, Outcome
from day0.cli.talk import Talk
from day0.playbook import Playbook
from day0.records import CanaryReport, Inventory, Lock, NumericsReport, Record, Trace

if TYPE_CHECKING:
    from day0.cli.walk import Planned
    from day0.devices.faults._fault import Fault
    from day0.devices.profile import DeviceProfile

__all__ = ["cost", "ending", "faults", "not_run", "outcome", "plan", "profiles", "record", "title"]

TOP = 15
"""Rows of a table on the terminal; the record holds all of them."""
PROBLEMS = 40
"""Lines of what has to be repaired: a gap that is not named here would be looked for one run at a time."""


def _safe(text: object) -> str:
    return escape(clean(str(text)))


def title(talk: Talk, asked: Playbook, path: Path, folder: RunFolder) -> None:
    """Say what is about to happen."""
    talk.say(f"[bold]{_safe(asked.name)}[/bold]  {_safe(asked.model.source)} on {_safe(asked.device)}")
    talk.say(f"playbook {_safe(path)}, run folder {_safe(folder.path)}\n")


def outcome(talk: Talk, number: int, one: Outcome) -> None:
    """One stage: what came out, whether it was made or kept and why, and what has to be repaired."""
    word = "[green]pass[/green]" if one.passed else "[red]FAIL[/red]"
    made = "kept" if one.freshness.fresh else f"made in {one.seconds:.1f} s"
    lines = [_safe(one.summary), f"[dim]{made}: {_safe(one.freshness.reason)}[/dim]"]
    lines += [f"[red]✗[/red] {_safe(problem)}" for problem in one.problems[:PROBLEMS]]
    if len(one.problems) > PROBLEMS:
        lines.append(f"and {len(one.problems) - PROBLEMS} more in the record")
    if isinstance(one.record, Trace) and one.record.model.adapted:
        lines.append(f"adapted: {_safe('; '.join(f'{key} {text}' for key, text in one.record.model.adapted.items()))}")
    if isinstance(one.record, CanaryReport):
        lines += [show_canary.stage_line(stage) for stage in one.record.stages]
    _line(talk, number, one.stage, word, "\n".join(lines))


def _line(talk: Talk, number: int, name: str, word: str, text: str) -> None:
    """Number, stage and verdict in columns of their own, so that a long text wraps beside them."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=11)
    grid.add_column(width=5)
    grid.add_column(overflow="fold")
    grid.add_row(f"{number} [bold]{name}[/bold]", word, text)
    talk.out.print(grid)


def not_run(talk: Talk, number: int, name: str, failed: str) -> None:
    """A stage that waits for an earlier one."""
    _line(talk, number, name, "[yellow]skip[/yellow]", f"{failed} failed")


def plan(talk: Talk, rows: Sequence[Planned], seconds: Mapping[str, float] | None = None) -> None:
    """What `status` and `--dry-run` say of each stage; with `seconds` also how long its record took, and all of them."""
    for number, row in enumerate(rows, start=1):
        took = f"[dim]made in {seconds[row.stage]:.1f} s[/dim]" if seconds and row.stage in seconds else ""
        word = "[green]fresh[/green]" if row.fresh else "[yellow]stale[/yellow]"
        _line(talk, number, row.stage, word, f"{_safe(row.reason)}\n{took}".rstrip())
    if seconds:
        talk.say(f"\n{sum(seconds.values()):.1f} s in all")


def ending(talk: Talk, outcomes: Sequence[Outcome], page: Path, *, passed: bool) -> None:
    """The verdict of the run and where the report lies."""
    if all(one.freshness.fresh for one in outcomes) and len(outcomes) == len(STAGES):
        talk.say("\nnothing was run again: every stage is fresh")
    locks = [one.record for one in outcomes if isinstance(one.record, Lock)]
    slow = sorted({entry.operator for lock in locks for entry in lock.entries if entry.kind == "cpu_fallback"})
    if not passed:
        talk.say("\n[red]not ready[/red]: see above")
    elif slow:
        talk.say(f"\n[green]ready[/green], but on the CPU with transfers: {_safe(', '.join(slow))}")
    else:
        talk.say("\n[green]ready[/green]")
    talk.out.print(f"report: {_safe(page)}", soft_wrap=True)


def cost(talk: Talk, one: Outcome) -> None:
    """Seconds and peak memory of a trace."""
    talk.say(f"\n{one.seconds:.1f} s, peak memory {peak_resident() / 2**20:,.0f} MB")


def record(talk: Talk, value: Record, *, operators: bool = True) -> None:
    """Show one record as a table; a trace without that of its operators where it is not asked for."""
    if isinstance(value, Trace):
        _trace(talk, value, operators=operators)
    elif isinstance(value, Inventory):
        show_inventory.inventory(talk, value)
    elif isinstance(value, Lock):
        _lock(talk, value)
    elif isinstance(value, NumericsReport):
        show_check.numerics(talk, value)
    elif isinstance(value, CanaryReport):
        show_canary.canary(talk, value)


def _table(talk: Talk, *columns: str, caption: str = "") -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", caption=caption or None, caption_justify="left")
    for name in columns:
        numeric = name in {"calls", "share", "tokens", "context", "gflop", "signatures", "cases"}
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    return table


def _trace(talk: Talk, trace: Trace, *, operators: bool) -> None:
    info = trace.model
    size = f"{info.parameters / 1e9:,.1f} billion" if info.parameters >= 1e9 else f"{info.parameters:,}"
    talk.say(f"\n{_safe(info.class_name)}: {size} parameters, {info.parameter_bytes / 2**30:,.2f} GiB in {info.dtype}")
    if info.weights:
        talk.say(f"weights {_safe(info.weights)}")
    talk.say(f"[dim]{_safe(trace.mode_reason)}[/dim]")
    if trace.shrunk:
        first = ", ".join(f"{name} {text}" for name, text in list(trace.shrunk.items())[:3])
        talk.say(f"[dim]shrunk: {len(trace.shrunk)} config fields, {_safe(first)} …; trace.json has all[/dim]")
    if trace.assumed:
        told = ", ".join(f"{name} {count:,}×" for name, count in trace.assumed.items())
        talk.say(f"[dim]assumed, since they depend on data: {_safe(told)}[/dim]")
    talk.say("")
    table = _table(talk, "phase", "tokens", "context", "calls", "why")
    for phase in trace.phases:
        table.add_row(phase.name, f"{phase.tokens:,}", f"{phase.context:,}", f"{phase.calls:,}", _safe(phase.reason))
    talk.out.print(table)
    if not operators:
        return
    talk.say("")
    calls: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for entry in trace.entries:
        row, count = calls[entry.signature.op], sum(entry.counts.values())
        row[0], row[1], row[2] = row[0] + count, row[1] + 1, row[2] + count * entry.flops
    rest = f"{len(calls)} operators in all" if len(calls) > TOP else ""
    table = _table(talk, "operator", "calls", "signatures", "gflop", caption=rest)
    for name, row in sorted(calls.items(), key=lambda item: (-item[1][2], -item[1][0]))[:TOP]:
        table.add_row(_safe(name), f"{row[0]:,}", str(row[1]), f"{row[2] / 1e9:,.3f}" if row[2] else "")
    talk.out.print(table)
    if trace.imported is not None:
        from day0.cli.traced_inputs import show_imported  # imports torch, without which a plan can be shown

        show_imported(talk, trace.imported)


def _lock(talk: Talk, lock: Lock) -> None:
    table = _table(talk, "operator", "dtypes", "chosen", "kind", "refused")
    table.columns[0].no_wrap = True
    for entry in lock.entries:
        refused = sum(1 for one in entry.decisions if not one.accepted)
        dtypes = ", ".join(dict.fromkeys(entry.dtypes))
        one = entry.identity
        chosen = f"{one.namespace}:{one.id}=={one.version}"
        table.add_row(_safe(entry.operator), dtypes, _safe(chosen), entry.kind, str(refused or ""))
    if lock.entries:
        talk.say("")
        talk.out.print(table)
    for text in lock.ambiguities:
        talk.say(f"\n[yellow]warning[/yellow]: {_safe(text)}")
    if lock.holes:
        talk.say("\nnext to what was traced, no kernel takes (a reference or fallback would run):")
        for text in lock.holes[:TOP]:
            talk.say(f"  {_safe(text)}")
        if len(lock.holes) > TOP:
            talk.say(f"  and {len(lock.holes) - TOP} more in ops.lock")


def profiles(talk: Talk, found: Sequence[DeviceProfile]) -> None:
    """The profiles as a table."""
    table = _table(talk, "name", "torch device", "lacks", "what it is")
    for profile in found:
        table.add_row(profile.name, profile.torch_device, str(len(profile.lacks)), _safe(profile.title))
    talk.out.print(table)


def faults(talk: Talk, found: Sequence[Fault]) -> None:
    """The planted faults, families together: what each does, its operators and its source."""
    family = ""
    for one in found:
        if one.family != family:
            family = one.family
            talk.say(f"\n[bold]{family}[/bold]")
        mark = "" if one.is_fault else " [green](legitimate)[/green]"
        talk.out.print(f"  {one.name}{mark}: {_safe(one.does)}", soft_wrap=True)
        talk.out.print(f"    [dim]{_safe(' '.join(one.operators))}; {_safe(one.source)}[/dim]", soft_wrap=True)
    wrong = sum(one.is_fault for one in found)
    talk.say(f"\n{wrong} faults and {len(found) - wrong} legitimate differences; plant with --plant NAME")

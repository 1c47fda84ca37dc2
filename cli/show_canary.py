"""A canary for people: one line a stage, the figures, the slowest operators, and what to run after a failure."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from day0.cli.failures import clean
from day0.cli.talk import Talk
from day0.records import CanaryReport, FigureResult, GateResult, OperatorFigures, StageResult

__all__ = ["canary", "stage_line", "way_on"]

TOP = 8
"""Operators of a stage that are shown."""
_MARKS = {"pass": "[green]✓[/green]", "fail": "[red]✗[/red]", "skipped": "[yellow]-[/yellow]"}


def _safe(text: object) -> str:
    return escape(clean(str(text)))


def stage_line(stage: StageResult) -> str:
    """Return one stage with its gates, or with the reason why it failed or was skipped; warnings below."""
    mark = "[yellow]![/yellow]" if stage.warnings else _MARKS[stage.status]
    gates = ", ".join(_gate(gate) for gate in stage.gates)
    lines = [f"{mark} {_safe(stage.name)}: {_safe(stage.reason or gates)}{' (kept)' if stage.kept else ''}"]
    return "\n".join([*lines, *(f"  [yellow]not decided[/yellow]: {_safe(one)}" for one in stage.warnings)])


def _gate(gate: GateResult) -> str:
    value = "?" if gate.value is None else f"{gate.value:.3g}"
    span = f" ({gate.low:.3g} to {gate.high:.3g})" if gate.low is not None and gate.high is not None else ""
    return f"{gate.metric} {value}{span if gate.low != gate.high else ''} {gate.rule} {gate.limit:g}"


def canary(talk: Talk, report: CanaryReport) -> None:
    """Show the figures of every stage that ran, its slowest operators, and who ran."""
    for stage in report.stages:
        if stage.status == "skipped":
            continue
        talk.say(f"\n{_safe(stage.title)}")
        for name, value in stage.metrics.items():
            talk.say(f"  {_safe(name)} {value:.6g}{_scatter(stage.figures.get(name))}")
        if stage.operators:
            talk.out.print(_operators(stage.operators))
        for receipt in stage.receipts:
            talk.say(f"  [dim]{receipt.calls} × {_safe(receipt.identity)} on {_safe(receipt.device)}[/dim]")


def _scatter(figure: FigureResult | None) -> str:
    if figure is None:
        return ""
    unit = f" {_safe(figure.unit)}" if figure.unit else ""
    spread = figure.low is not None and figure.high is not None and figure.low != figure.high
    return f"{unit} ({figure.low:.4g} to {figure.high:.4g})" if spread else unit


def _operators(operators: tuple[OperatorFigures, ...]) -> Table:
    rest = f"  {len(operators)} in all, in canary.json" if len(operators) > TOP else ""
    table = Table(box=None, pad_edge=False, header_style="bold", caption=rest, caption_justify="left")
    for name in ("operator", "calls", f"µs ({operators[0].clock})", "bandwidth", "compute"):
        table.add_column(name, justify="left" if name == "operator" else "right", overflow="fold")
    for one in operators[:TOP]:
        shares = [f"{share:.1%}" if share is not None else "" for share in (one.bandwidth_share, one.compute_share)]
        table.add_row(f"  {_safe(one.operator)}", f"{one.calls:,}", f"{one.seconds * 1e6:,.1f}", *shares)
    return table


def way_on(talk: Talk, report: CanaryReport, folder: Path) -> None:
    """Say after a failure what to run next, and how to go back to the last lock that passed."""
    failed = next((stage for stage in report.stages if stage.status == "fail"), None)
    if failed is None:
        return
    where = shlex.quote(str(folder))
    if failed.next_command.startswith("day0 repro "):
        talk.out.print(f"next: day0 repro {shlex.quote(str(folder / failed.next_command[11:]))}", soft_wrap=True)
    elif failed.next_command:
        talk.out.print(_safe(f"next: {failed.next_command} --run {where}"), soft_wrap=True)
    good = report.last_good
    if good is None:
        talk.say("no lock has passed on this device before")
        return
    talk.out.print(
        _safe(f"the last lock that passed on {report.device}: {good.lock[:23]}, {good.when}"), soft_wrap=True
    )
    back = f"cp {shlex.quote(str(folder / good.file))} {shlex.quote(str(folder / 'ops.lock'))}"
    talk.out.print(_safe(f"back to it: {back} && day0 canary --run {where} --frozen"), soft_wrap=True)

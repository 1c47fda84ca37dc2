"""A numerics report for people: what failed first, by cause; then what came nearest to its limit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from rich.table import Table

from day0.analyzers.checking.causes import Cause, causes
from day0.cli import show_model_check
from day0.cli.talk import Talk, safe
from day0.records import WARNING, CaseResult, NumericsReport

__all__ = ["case_lines", "numerics"]

TOP = 15
"""Rows of a table on the terminal; the record holds all of them."""
NOTED = 5
FULL_GOLDENS = ("float64 on cpu", "exact on cpu", "refused on cpu")


def numerics(talk: Talk, report: NumericsReport) -> None:
    """Show a report, failures first."""
    for cause in causes(report.cases):
        _show_cause(talk, cause)
    _nearest(talk, report.cases)
    _goldens(talk, report.cases)
    _skipped(talk, report.cases)
    _warnings(talk, report.cases)
    _notes(talk, report.cases)
    show_model_check.model_check(talk, report.model)


def _show_cause(talk: Talk, cause: Cause) -> None:
    first, count = cause.cases[0], len(cause.cases)
    times = f"{count} cases" if count > 1 else "1 case"
    talk.say(f"\n[red]✗[/red] [bold]{safe(first.op)}[/bold] {safe(first.implementation)}: {times}")
    shown = f"{safe(first.shapes)} \\[{safe(first.regime)}, seed {first.seed}]"
    talk.say(f"  {'first: ' if count > 1 else ''}{shown}")
    for line in case_lines(first):
        talk.say(f"  {safe(line)}")
    if first.reproducer:
        talk.say(f"  [dim]day0 repro RUN/{safe(first.reproducer)}[/dim]")


def case_lines(case: CaseResult) -> tuple[str, ...]:
    """Return what is to be said of one case: verdict, the worst element with both values, what would have passed."""
    lines = [f"{case.status} by {case.rule}: {case.reason}" if case.reason else f"{case.status} by {case.rule}"]
    if case.worst_index is not None:
        lines.append(f"worst at {list(case.worst_index)}: {case.worst_got}, expected {case.worst_expected}")
    if case.error is not None and case.limit is not None:
        own = f", the dtype's own {case.yardstick:.3g}" if case.yardstick is not None else ""
        lines.append(f"error {case.error:.3g}, limit {case.limit:.3g}{own}")
    if case.needed is not None and case.failed:
        lines.append(f"smallest limit that would have passed: {case.needed:.3g}")
    return (*lines, *case.notes)


def _nearest(talk: Talk, cases: Sequence[CaseResult]) -> None:
    worst = sorted(
        (case for case in cases if case.error is not None and case.limit and not case.failed),
        key=lambda case: -((case.error or 0.0) / (case.limit or 1.0)),
    )
    if not worst:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("nearest to its limit", "implementation", "regime", "error", "dtype's own", "limit", "status"):
        table.add_column(name, overflow="fold")
    for case in worst[:TOP]:
        figures = [f"{value:.2g}" if value is not None else "" for value in (case.error, case.yardstick, case.limit)]
        table.add_row(safe(case.op), safe(case.implementation), case.regime, *figures, case.status)
    talk.say("")
    talk.out.print(table)


def _goldens(talk: Talk, cases: Sequence[CaseResult]) -> None:
    """Say what was measured against less than float64: never silently lower."""
    low: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        if case.golden and case.golden not in FULL_GOLDENS:
            low[case.golden].append(case.op)
    for golden, ops in low.items():
        names = ", ".join(list(dict.fromkeys(ops))[:NOTED])
        talk.say(f"[yellow]golden not in float64[/yellow]: {safe(golden)} for {len(ops)} cases of {safe(names)}")


def _skipped(talk: Talk, cases: Sequence[CaseResult]) -> None:
    skipped = Counter(f"{case.op}: {case.reason}" for case in cases if case.status == "skipped")
    for reason, count in skipped.most_common(TOP):
        talk.say(f"[dim]skipped {count} × {safe(reason)}[/dim]")


def _warnings(talk: Talk, cases: Sequence[CaseResult]) -> None:
    """Say once for each operator what is within the rules and shows in a model all the same."""
    warned: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        if not case.failed:
            warned[case.op] += case.warnings
    for op, texts in warned.items():
        if texts:
            talk.say(f"[yellow]warning[/yellow] {len(texts)} × {safe(op)}: {safe(texts[0])}")


def _notes(talk: Talk, cases: Sequence[CaseResult]) -> None:
    kept = (case for case in cases if not case.failed)
    noted = Counter(f"{case.op}: {note}" for case in kept for note in case.notes if not note.startswith(WARNING))
    for text, count in noted.most_common(NOTED):
        talk.say(f"[dim]note {count} × {safe(text)}[/dim]")
    if len(noted) > NOTED:
        talk.say(f"[dim]and {len(noted) - NOTED} more notes in numerics.json[/dim]")

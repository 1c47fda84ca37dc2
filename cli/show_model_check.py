"""The model level of a check, for people."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from day0.cli.failures import clean
from day0.cli.talk import Talk
from day0.records import LogitsResult, ModelCheck, ModuleResult, WaysResult

__all__ = ["model_check"]

ROWS = 12
"""Rows of a table on the terminal; numerics.json holds all of them."""

_WORDS = {
    "pass": "[green]pass[/green]",
    "fail": "[red]fail[/red]",
    "warning": "[yellow]warning[/yellow]",
    "skipped": "[dim]skipped[/dim]",
    "not_comparable": "[yellow]not comparable[/yellow]",
}


def model_check(talk: Talk, check: ModelCheck | None) -> None:
    """Show what the model level found; nothing where it was not asked for."""
    if check is None:
        return
    talk.say(f"\n[bold]model[/bold] {_WORDS[check.status]} {_safe(check.reason)}")
    if check.status == "skipped":
        return
    if check.first_divergent:
        talk.say(f"first divergent module: {_safe(check.first_divergent)}")
    if check.non_finite is not None:
        one = check.non_finite
        also = ", and so does the same dtype on the CPU" if one.also_on_cpu else ""
        what = f"{one.elements} NaN or infinite elements of finite inputs{also}"
        talk.say(f"first non-finite: {_safe(one.module)} ({_safe(one.class_name)}) in {_safe(one.phase)} makes {what}")
    if check.choices_moved or check.choices_lost:
        talk.say(f"[dim]{_safe(_choices(check))}[/dim]")
    _modules(talk, check)
    _ways(talk, check.ways)
    _logits(talk, check.logits)
    for note in check.notes:
        talk.say(f"[dim]{_safe(note)}[/dim]")


def _choices(check: ModelCheck) -> str:
    text = f"{check.choices_moved} of {check.choices} rows of experts or tokens were near ties and fell otherwise; "
    text += "they were set to the golden's, so that the rest can be compared" if check.choices_moved else ""
    return "choices were made by other operators than in the golden" if check.choices_lost else text


def _modules(talk: Talk, check: ModelCheck) -> None:
    """Those that fail, then those nearest to their limit, with what had built up by then."""
    rows = sorted(check.modules, key=_nearness, reverse=True)[:ROWS]
    table = _table("module", "class", "in", "own error", "dtype's own", "limit", "built up", "status")
    for one in rows:
        figures = [f"{value:.2g}" for value in (one.fresh.error, one.fresh.yardstick, one.fresh.limit)]
        status = one.fresh.status if one.fresh.status != "skipped" else one.cumulative.status
        built = f"{one.cumulative.error:.2g}"
        table.add_row(
            _safe(one.module or "(model)"), _safe(one.class_name), _safe(one.phase), *figures, built, _WORDS[status]
        )
    talk.say("")
    talk.out.print(table)


def _nearness(one: ModuleResult) -> tuple[bool, float]:
    return one.fresh.status == "fail", one.fresh.error / one.fresh.limit if one.fresh.limit else 0.0


def _ways(talk: Talk, ways: tuple[WaysResult, ...]) -> None:
    if not ways:
        return
    table = _table("two ways to the same logits", "apart", "on the CPU", "limit", "flips", "status", "why")
    for one in ways:
        figures = [f"{value:.2g}" for value in (one.difference, one.yardstick, one.limit)]
        table.add_row(_safe(one.name), *figures, str(one.flips), _WORDS[one.status], _safe(one.reason))
    talk.say("")
    talk.out.print(table)


def _logits(talk: Talk, logits: tuple[LogitsResult, ...]) -> None:
    if not logits:
        return
    table = _table("decoding", "KL", "on the CPU", "limit", "best 5 shared", "first other token", "status", "why")
    for one in logits:
        figures = [f"{value:.2g}" for value in (one.kl_mean, one.kl_mean_cpu, one.kl_limit)]
        first = "none" if one.first_divergent is None else f"{one.first_divergent}, {one.margin:.2g} apart"
        shared = f"{one.overlap:.0%}"
        table.add_row(one.decoding, *figures, shared, first, _WORDS[one.status], _safe(one.reason))
    talk.say("")
    talk.out.print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _safe(text: object) -> str:
    return escape(clean(str(text)))

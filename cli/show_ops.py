"""Operators for people: the list, one contract, the table of agreements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from day0.cli.failures import clean
from day0.cli.talk import Talk

if TYPE_CHECKING:
    from day0.implementation import Implementation
    from day0.reference_ops._spec import Operator
    from day0.reference_ops.agreement._verify import Agreement

__all__ = ["agreements", "operator", "operators"]

FIGURES = ("ratio", "ceiling", "ulps")

COLOURS = {"agrees": "green", "differs": "red", "broken": "red", "not installed": "yellow"}


def _safe(text: object) -> str:
    return escape(clean(str(text)))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in {"largest error", "limit"} else "left", overflow="fold")
    return table


def operators(
    talk: Talk,
    found: Mapping[str, Operator],
    implementations: Sequence[Implementation],
    against: Mapping[str, Sequence[str]],
) -> None:
    """Operators with contract version, implementations and whose code they were compared with."""
    table = _table("operator", "contract", "implementations", "verified against", "what it is")
    for name, one in sorted(found.items()):
        mine = [f"{it.namespace}:{it.id}=={it.version}" for it in implementations if it.operator == name]
        verified = ", ".join(against[name]) or one.verified_against
        table.add_row(
            _safe(name), str(one.version), _safe("\n".join(mine)), _safe(verified or "nothing yet"), _safe(one.summary)
        )
    talk.out.print(table)


def operator(talk: Talk, facts: Mapping[str, Any]) -> None:
    """The contract of one operator, one topic in a row."""
    talk.say(f"[bold]{_safe(facts['name'])}[/bold]  contract {facts['version']}\n{_safe(facts['summary'])}\n")
    limits = facts["tolerance"]
    kinds = ", ".join(f"{count} {kind}" for kind, count in facts["samples"].items())
    rows = [
        ("schema", [facts["schema"] or "torch's own"]),
        ("meaning", [facts["mathematics"]]),
        ("source", [facts["source"]]),
        ("attributes", [f"{name}: {meaning}" for name, meaning in facts["attributes"].items()]),
        ("compared", [f"as {facts['comparison']}, {', '.join(f'{key} {limits[key]:g}' for key in FIGURES)}"]),
        ("because", [limits["reason"]]),
        ("verified", [facts["verified_against"] or "not yet against independent code"]),
        ("comparisons", [_comparison(one) for one in facts["comparisons"]]),
        ("samples", [kinds, *(f"{one['kind']}: {', '.join(one['arguments'])}" for one in facts["sample_arguments"])]),
        ("has", [name for name, there in facts["has"].items() if there]),
        ("has no", [name for name, there in facts["has"].items() if not there]),
        ("implementations", [f"{one['identity']} ({one['kind']}): {one['why']}" for one in facts["implementations"]]),
    ]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for topic, lines in rows:
        grid.add_row(topic, _safe("\n".join(lines) or "none"))
    talk.out.print(grid)


def _comparison(one: Mapping[str, Any]) -> str:
    variant = f"{one['variant']}: " if one["variant"] else ""
    return f"{variant}{one['against']} ({one['distribution']}), at most {one['limit']:g}"


def agreements(talk: Talk, done: Sequence[Agreement]) -> None:
    """The table, what differs, and what is not installed."""
    from day0.reference_ops.agreement._verify import COLUMNS, cells, missing

    table = _table(*COLUMNS)
    for one in done:
        *rest, verdict = (_safe(cell) for cell in cells(one))
        table.add_row(*rest, f"[{COLOURS[one.verdict]}]{verdict}[/{COLOURS[one.verdict]}]")
    talk.out.print(table)
    counts = {verdict: sum(one.verdict == verdict for one in done) for verdict in COLOURS}
    names = len({one.comparison.operator for one in done})
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    talk.say(f"\noperators {names}, comparisons {len(done)}: {said}")
    if absent := missing(done):
        talk.say(f"to run the rest: pip install {_safe(' '.join(absent))}")

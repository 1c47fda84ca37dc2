"""Operators for people: the list, one contract, the table of agreements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from day0.cli.talk import Talk, safe

if TYPE_CHECKING:
    from day0.reference_ops.agreement._verify import Agreement

__all__ = ["agreements", "operator", "operators"]

FIGURES = ("ratio", "ceiling", "ulps")

COLOURS = {"agrees": "green", "differs": "red", "broken": "red", "not installed": "yellow"}


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in {"largest error", "limit"} else "left", overflow="fold")
    return table


def operators(talk: Talk, listed: Mapping[str, Any], *, filtered: bool) -> None:
    """Operators, each with a line for every implementation; with a filter, without those that have none left."""
    wide = talk.out.width >= WIDE
    columns = ["operator", "contract", "implementation", "kind", "devices", "from"]
    table = _table(*columns, *(["verified against", "what it is"] if wide else []))
    for name, one in listed.items():
        if filtered and not one["implementations"]:
            continue
        said = [", ".join(one["verified_against"]) or "nothing yet", one["summary"]] if wide else []
        head = [name, str(one["version"])]
        for mine in one["implementations"] or [None]:
            table.add_row(*map(safe, (*head, *_cells(mine), *said)))
            head, said = ["", ""], ["", ""] if wide else []
    talk.out.print(table)
    shown = [one for one in listed.values() if one["implementations"] or not filtered]
    mine = [it for one in shown for it in one["implementations"]]
    talk.say(f"\n{_count(shown, 'operator')}, {_count(mine, 'implementation')}")


WIDE = 150
"""Columns of a terminal from which on there is room for words."""


def _count(many: Sequence[object], word: str) -> str:
    return f"{len(many)} {word}{'' if len(many) == 1 else 's'}"


def _cells(one: Mapping[str, Any] | None) -> tuple[str, ...]:
    if one is None:
        return ("none", "", "", "")
    return f"{one['namespace']}:{one['id']}=={one['version']}", one["kind"], " ".join(one["devices"]), one["source"]


def operator(talk: Talk, facts: Mapping[str, Any]) -> None:
    """The contract of one operator, one topic in a row, and its implementations."""
    talk.say(f"[bold]{safe(facts['name'])}[/bold]  contract {facts['version']}\n{safe(facts['summary'])}\n")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    rows = _contract(facts) if "tolerance" in facts else [("schema", facts["overloads"])]
    for topic, lines in rows:
        grid.add_row(topic, safe("\n".join(lines) or "none"))
    talk.out.print(grid)
    talk.say(f"\n{_count(facts['implementations'], 'implementation')}")
    for one in facts["implementations"]:
        _implementation(talk, one)


def _contract(facts: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    limits = facts["tolerance"]
    kinds = ", ".join(f"{count} {kind}" for kind, count in facts["samples"].items())
    return [
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
    ]


def _implementation(talk: Talk, one: Mapping[str, Any]) -> None:
    devices = "any device that has its leaves" if one["devices"] == ["*"] else ", ".join(one["devices"])
    rows = [
        ("why", one["why"]),
        ("runs on", devices),
        ("takes", "\n".join(one["constraints"]) or "every call"),
        ("predicate", one["predicate"]),
        ("from", f"{one['source']}  {one['origin']}" if one["source"] not in one["origin"] else one["origin"]),
        ("source", one["source_hash"][:23]),
    ]
    talk.say(f"\n[bold]{safe(one['identity'].partition(' ')[2])}[/bold]  {one['kind']}, rank {one['rank']}")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for topic, text in rows:
        if text:
            grid.add_row(f"  {topic}", safe(text))
    talk.out.print(grid)


def _comparison(one: Mapping[str, Any]) -> str:
    variant = f"{one['variant']}: " if one["variant"] else ""
    return f"{variant}{one['against']} ({one['distribution']}), at most {one['limit']:g}"


def agreements(talk: Talk, done: Sequence[Agreement]) -> None:
    """The table, what differs, and what is not installed."""
    from day0.reference_ops.agreement._verify import COLUMNS, cells, missing

    table = _table(*COLUMNS)
    for one in done:
        *rest, verdict = (safe(cell) for cell in cells(one))
        table.add_row(*rest, f"[{COLOURS[one.verdict]}]{verdict}[/{COLOURS[one.verdict]}]")
    talk.out.print(table)
    counts = {verdict: sum(one.verdict == verdict for one in done) for verdict in COLOURS}
    names = len({one.comparison.operator for one in done})
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    talk.say(f"\noperators {names}, comparisons {len(done)}: {said}")
    if absent := missing(done):
        talk.say(f"to run the rest: pip install {safe(' '.join(absent))}")

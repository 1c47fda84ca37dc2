"""The tables of a report, once for all formats. Long tables are cut, and say where the rest is.

The page carries the rest as data, so that it can be searched; Markdown and paper do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from day0.records import Inventory, InventoryBlock, Trace
from day0.reports.clean import clean
from day0.reports.figures import bytes_text, error_text, share_text
from day0.reports.links import Link, linked
from day0.reports.summary import Case, Choice, GateLine, OpenGap, Operator, Skipped, Step, Summary
from day0.reports.words import CASES

__all__ = [
    "ROWS",
    "Cell",
    "Column",
    "Kind",
    "Table",
    "block_table",
    "canary",
    "cases_by_status",
    "failed",
    "gap_table",
    "gates",
    "hashes",
    "make_table",
    "metrics",
    "nearest",
    "operator_table",
    "pairs",
    "phases",
    "replacement_table",
    "short",
    "skipped",
    "verdicts",
]

ROWS = 40
"""Rows of a table in a report. What is beyond is in the record, whose name the table gives."""

Kind = Literal["text", "code", "number", "status", "notes"]
Cell = str | tuple[str | Link, ...]
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column: `notes` are sentences, which Markdown puts below the table; `status` is a word with a colour."""

    name: str
    kind: Kind = "text"


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table; the first column names its row. A cell of several texts has one line for each."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: str = ""
    """What was left out and where it is."""
    left: int = 0
    """Rows that were left out."""
    file: str = ""
    """The record that holds all of them."""
    unseen: Callable[[], Iterator[tuple[Cell, ...]]] = field(default=lambda: iter(()), compare=False)
    """Yields the rows that were left out."""

    @property
    def name(self) -> str:
        """The caption as a word for addresses; captions are ours, never foreign text."""
        return re.sub(r"[^a-z0-9]+", "-", self.caption.lower()).strip("-")


def make_table(
    caption: str,
    columns: str,
    rows: Iterable[R],
    cells: Callable[[R], tuple[Cell, ...]],
    *,
    file: str = "",
    most: int = ROWS,
) -> Table:
    """Make a table. `columns` reads `name:kind | name:kind`; columns that are empty in every row are left out.

    `cells` turns a row into texts that are clean. Beyond `most` rows, what is left is made when somebody asks for it.
    """
    found = tuple(rows)
    shown = [cells(row) for row in found[:most]]
    heads = [name.partition(":") for name in columns.split(" | ")]
    left = len(found) - len(shown)
    kept = [n for n in range(len(heads)) if n == 0 or left or any(row[n] for row in shown)]
    kinds: dict[str, Kind] = {"code": "code", "number": "number", "status": "status", "notes": "notes"}
    return Table(
        caption=caption,
        columns=tuple(Column(name=heads[n][0], kind=kinds.get(heads[n][2], "text")) for n in kept),
        rows=tuple(tuple(row[n] for n in kept) for row in shown),
        more=f"and {left:,} more in {file}" if left else "",
        left=left,
        file=file,
        unseen=lambda: (tuple(row[n] for n in kept) for row in map(cells, found[most:])),
    )


def _lines(*texts: str | Link) -> tuple[str | Link, ...]:
    return tuple(text for text in texts if text)


_OPERATOR = re.compile(r"\S+@\d+ (?=\S+==)")


def short(text: str) -> str:
    """Leave out of the identities in a text what the operator's own column says already."""
    return _OPERATOR.sub("", text)


def phases(trace: Trace) -> Table:
    """What was run to trace the model."""
    return make_table(
        "Phases of the workload",
        "phase:code | batch:number | new tokens:number | in the cache:number | calls:number | why:notes",
        trace.phases,
        lambda one: (
            clean(one.name),
            f"{one.batch:,}",
            f"{one.tokens:,}",
            f"{one.context:,}",
            f"{one.calls:,}",
            clean(one.reason),
        ),
        file="trace.json",
    )


def verdicts(summary: Summary) -> Table:
    """How much of the model has which verdict."""
    return make_table(
        "Verdicts on every traced signature, before the lock",
        "verdict:code | signatures:number | calls:number | share:number | left open:number | meaning",
        summary.verdicts,
        lambda one: (
            one.verdict,
            f"{one.signatures:,}",
            f"{one.calls:,}",
            share_text(one.share),
            f"{one.left_open:,}" if one.left_open else "",
            one.meaning,
        ),
    )


def operator_table(summary: Summary) -> Table:
    """The chart in figures."""

    def cells(one: Operator) -> tuple[Cell, ...]:
        return (one.op, ", ".join(one.weights), f"{one.signatures:,}", f"{one.calls:,}", share_text(one.share))

    columns = "operator:code | verdicts:code | signatures:number | calls:number | share:number"
    return make_table("Operators, heaviest first", columns, summary.operators, cells, file="inventory.json")


def gap_table(summary: Summary) -> Table:
    """Gaps that nothing closes."""

    def cells(one: OpenGap) -> tuple[Cell, ...]:
        place = " ".join(part for part in (one.module, f"({one.source})" if one.source else "") if part)
        refused = tuple(f"refused {short(text)}" for text in one.refused)
        options = tuple(f"could be closed by {short(text)}" for text in one.options)
        why = _lines(one.reason, f"first in {place}" if place else "", *(refused or options or ("no candidate",)))
        return (one.operator, ", ".join(one.dtypes), one.verdict, f"{one.calls:,}", share_text(one.share), why)

    columns = "operator:code | dtypes:code | on the device:code | calls:number | share:number | why:notes"
    return make_table("Gaps that nothing closes, by share", columns, summary.gaps, cells, file="ops.lock")


def replacement_table(summary: Summary) -> Table:
    """What the lock chose."""

    def cells(one: Choice) -> tuple[Cell, ...]:
        ran = "" if one.ran is None else f"{one.ran:,}"
        refused = tuple(f"refused {short(text)}" for text in one.refused)
        return (
            one.operator,
            ", ".join(one.dtypes),
            one.implementation,
            one.kind.replace("_", " "),
            f"{one.calls:,}",
            share_text(one.share),
            ran,
            _lines(one.reason, *refused),
        )

    columns = (
        "operator:code | dtypes:code | implementation:code | kind | calls:number | share:number"
        " | ran in canary:number | why:notes"
    )
    return make_table("Implementations that stand in, by share", columns, summary.replacements, cells, file="ops.lock")


def block_table(inventory: Inventory) -> Table:
    """Blocks and fusions: what one replacement would take."""

    def cells(one: InventoryBlock) -> tuple[Cell, ...]:
        parts = ", ".join(f"{calls:,} calls of {op}" for op, calls in one.gaps.items() if op not in one.closes)
        why = (
            f"recognised by {one.recognised}: {one.reason}",
            f"closes {', '.join(one.closes)}" if one.closes else "",
            f"takes {parts}" if parts else "",
            f"there is {short(one.options[0])}" if one.options else "",
        )
        return (
            clean(one.name),
            one.kind,
            clean(", ".join(one.operators)),
            f"{one.sites:,}",
            f"{one.launches:,}",
            share_text(one.share),
            bytes_text(one.bytes_saved) if one.bytes_saved else "",
            _lines(*map(clean, why)),
        )

    columns = (
        "block:code | kind | operators of ours:code | sites:number | calls:number | share:number"
        " | saved by fusing:number | why:notes"
    )
    return make_table(
        "Blocks that one implementation could take", columns, inventory.blocks, cells, file="inventory.json"
    )


def cases_by_status(summary: Summary) -> Table:
    """Numerics cases by status."""
    return make_table(
        "Numerics cases by status",
        "status:status | cases:number | meaning",
        summary.checks.items(),
        lambda one: (one[0], f"{one[1]:,}", CASES.get(one[0], "")),
    )


def failed(summary: Summary) -> Table:
    """Cases that fail."""

    def cells(one: Case) -> tuple[Cell, ...]:
        why = _lines(
            f"{one.rule}: {one.reason}" if one.reason else one.rule,
            one.shapes,
            one.worst,
            f"golden: {one.golden}" if one.golden else "",
            linked("reproducer", one.reproducer),
        )
        return (
            one.op,
            one.status,
            one.regime,
            short(one.implementation),
            error_text(one.error),
            error_text(one.yardstick),
            error_text(one.limit),
            why,
        )

    columns = (
        "operator:code | status:status | regime | implementation:code | error:number | dtype's own:number"
        " | limit:number | why:notes"
    )
    return make_table("Failed cases, worst first", columns, summary.failures, cells, file="numerics.json")


def nearest(summary: Summary) -> Table:
    """Passing cases, nearest to the limit first."""

    def cells(one: Case) -> tuple[Cell, ...]:
        figures = (error_text(one.error), error_text(one.yardstick), error_text(one.limit))
        return (one.op, one.regime, short(one.implementation), *figures)

    columns = "operator:code | regime | implementation:code | error:number | dtype's own:number | limit:number"
    return make_table("Passing cases, nearest to their limit first", columns, summary.nearest, cells)


def skipped(summary: Summary) -> Table:
    """Why cases were skipped."""

    def cells(one: Skipped) -> tuple[Cell, ...]:
        return (one.op, f"{one.cases:,}", one.reason)

    return make_table(
        "Skipped cases by reason", "operator:code | cases:number | why", summary.skipped, cells, file="numerics.json"
    )


def canary(summary: Summary) -> Table:
    """The canary stages."""

    def cells(one: Step) -> tuple[Cell, ...]:
        met = f"{sum(gate.verdict == 'successful' for gate in one.gates)} of {len(one.gates)}" if one.gates else ""
        evidence = linked("evidence", one.evidence)
        diverged = one.diverged and f"first to go wrong: {one.diverged}"
        return (one.name, one.status, one.title, met, _lines(one.reason, diverged, evidence, *one.warnings))

    columns = "stage:code | status:status | what | gates met:number | why:notes"
    return make_table(
        "Canary stages in the order in which they widen", columns, summary.canary, cells, file="canary.json"
    )


def gates(summary: Summary) -> Table:
    """The gates of all canary stages."""

    def cells(one: tuple[Step, GateLine]) -> tuple[Cell, ...]:
        value = "not measured" if one[1].value is None else f"{one[1].value:.4g}"
        span = f" ({one[1].low:.3g} to {one[1].high:.3g})" if one[1].low is not None and one[1].high is not None else ""
        status = (
            "undecided" if one[1].verdict == "inconclusive" and one[1].passed else "pass" if one[1].passed else "fail"
        )
        return (one[0].name, one[1].rule, f"{value}{span}", status, one[1].reason)

    columns = "stage:code | gate:code | value:number | status:status | why:notes"
    lines = [(step, gate) for step in summary.canary for gate in step.gates]
    return make_table("Gates", columns, lines, cells, file="canary.json")


def metrics(summary: Summary) -> Table:
    """What the canary stages measured."""

    def cells(one: tuple[Step, str, float]) -> tuple[Cell, ...]:
        return (one[0].name, one[1], f"{one[2]:,.6g}")

    lines = [(step, name, value) for step in summary.canary for name, value in sorted(step.metrics.items())]
    return make_table("Metrics", "stage:code | metric:code | value:number", lines, cells, file="canary.json", most=200)


def hashes(values: dict[str, str]) -> Table:
    """The records, with the hash of what each says; on a page each can be opened."""
    return make_table(
        "Records and their hashes",
        "record:code | hash of the body:code | where:notes",
        sorted(values.items()),
        lambda one: (clean(one[0]), clean(one[1]), _lines(linked("open", one[0]))),
    )


def pairs(caption: str, first: str, second: str, values: dict[str, str]) -> Table:
    """Return names with texts, sorted by name."""
    return make_table(
        caption,
        f"{first} | {second}:code",
        sorted(values.items()),
        lambda one: (clean(one[0]), clean(one[1])),
    )

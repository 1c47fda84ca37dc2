"""What changed between two runs, as Markdown and as one HTML file in the look of the report."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined

from day0 import __version__
from day0.analyzers.diff.change import Change, Diff, Part
from day0.reports.clean import clean
from day0.reports.figures import counted
from day0.reports.mdtext import code, prose, table_lines
from day0.reports.tables import Cell, Column, Table

__all__ = ["ROWS", "diff_headline", "diff_html", "diff_markdown"]

ROWS = 200
"""Rows of one table; `day0 diff --json` has all."""

EFFECTS = {"worse": "Worse", "better": "Better", "other": "Neither"}

COLUMNS = (
    Column(name="what", kind="code"),
    Column(name="change"),
    Column(name="before", kind="code"),
    Column(name="now", kind="code"),
    Column(name="calls", kind="number"),
    Column(name="where and why", kind="notes"),
)


def diff_headline(made: Diff) -> str:
    """Return how many changes there are of each effect."""
    worse, better, other = (made.count(effect) for effect in ("worse", "better", "other"))
    if not worse + better + other:
        return "no difference"
    return f"{worse:,} worse, {better:,} better, {counted(other, 'other change')}"


def _parts(made: Diff) -> list[Part]:
    """Return the parts, those with something worse first."""
    return sorted(made.parts, key=lambda part: not any(one.effect == "worse" for one in part.changes))


def _tables(part: Part) -> Iterator[Table]:
    """Yield one table for each effect, with the columns that say something."""
    for effect, caption in EFFECTS.items():
        changes = [one for one in part.changes if one.effect == effect]
        if not changes:
            continue
        rows = [_cells(one) for one in changes[:ROWS]]
        kept = [n for n in range(len(COLUMNS)) if n == 0 or any(row[n] for row in rows)]
        left = len(changes) - len(rows)
        yield Table(
            caption=f"{caption}: {counted(len(changes), 'change')}",
            columns=tuple(COLUMNS[n] for n in kept),
            rows=tuple(tuple(row[n] for n in kept) for row in rows),
            more=f"and {left:,} more; day0 diff --json shows them" if left else "",
        )


def _cells(one: Change) -> tuple[str | tuple[str, ...], ...]:
    notes = tuple(clean(text) for text in (one.where, one.reason) if text)
    calls = f"{one.calls:,}" if one.calls else ""
    return clean(one.subject), clean(one.kind), clean(one.old), clean(one.new), calls, notes


def diff_markdown(made: Diff) -> str:
    """Return the whole comparison as Markdown, ending in a newline."""
    lines = [f"# {prose(clean(made.old))} → {prose(clean(made.new))}", "", f"**{diff_headline(made)}**"]
    if made.warnings:
        lines += ["", "Careful:", "", *(f"- {prose(clean(text))}" for text in made.warnings)]
    for part in _parts(made):
        lines += ["", f"## {prose(clean(part.name))}", "", f"{prose(clean(part.summary))}; {part.same:,} as they were"]
        for table in _tables(part):
            lines += ["", f"**{table.caption}**", "", *_markdown_table(table)]
    return "\n".join(lines) + "\n"


def _markdown_table(table: Table) -> list[str]:
    def cell(column: Column, value: Cell) -> str:
        text = "; ".join(map(str, value)) if isinstance(value, tuple) else value
        return code(text, in_table=True) if column.kind == "code" else prose(text)

    rows = [[cell(column, value) for column, value in zip(table.columns, row, strict=True)] for row in table.rows]
    lines = table_lines([one.name for one in table.columns], rows, [one.kind == "number" for one in table.columns])
    return [*lines, *(["", f"… {table.more}"] if table.more else [])]


def diff_html(made: Diff) -> str:
    """Return the whole comparison as one page: no script, no network, light and dark."""
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    parts = [
        {"name": clean(one.name), "summary": clean(one.summary), "same": one.same, "tables": list(_tables(one))}
        for one in _parts(made)
    ]
    return environment.get_template("diff.html.j2").render(
        old=clean(made.old),
        new=clean(made.new),
        headline=diff_headline(made),
        worse=made.count("worse"),
        warnings=[clean(text) for text in made.warnings],
        parts=parts,
        version=__version__,
    )


def _template(name: str) -> str:
    return (resources.files("day0.reports") / "templates" / name).read_text(encoding="utf-8")

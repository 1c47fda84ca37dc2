"""The report as Markdown: reads well raw in a terminal and rendered on a forge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from day0.records import Inventory
from day0.reports import more_tables, tables
from day0.reports.answers import answers
from day0.reports.beside_tables import tables_beside
from day0.reports.bundle import Bundle
from day0.reports.clean import clean
from day0.reports.figures import bytes_text, share_text
from day0.reports.glossary import WORDS
from day0.reports.links import Link
from day0.reports.mdtext import code, figure, link, prose, table_lines
from day0.reports.model_check import facts, model_tables
from day0.reports.performance import speeds
from day0.reports.summarise import summarise
from day0.reports.summary import Action, Beside, Stage, Summary
from day0.reports.tables import Cell, Table
from day0.reports.words import SIGNS, tone, word

__all__ = ["render_markdown"]


def render_markdown(bundle: Bundle) -> str:
    """Return the whole report, ending in a newline."""
    summary = summarise(bundle)
    parts = [_head(summary), _answers(summary), _next(summary), _stages(summary)]
    if bundle.inventory is not None:
        parts.append(_operators(summary, bundle.inventory))
    parts.append(_section("Trace", _trace_facts(summary), tables.phases(bundle.trace)))
    if bundle.numerics is not None:
        parts.append(_numerics(summary))
    if bundle.numerics is not None and bundle.numerics.model is not None:
        told = ["\n".join(f"- {prose(text)}" for text in facts(bundle.numerics.model))]
        parts.append(_section("Model", told, *model_tables(bundle.numerics.model)))
    if summary.canary:
        parts.append(_section("Canary", [], tables.canary(summary), tables.gates(summary), tables.metrics(summary)))
    if summary.points:
        shown = (more_tables.point_table(summary.points), more_tables.speed_table(speeds(bundle)))
        parts.append(_section("Performance", [], *shown))
    parts += [_beside(bundle, summary), _evidence(bundle), _glossary()]
    return "\n".join(line.rstrip() for line in "\n\n".join(parts).split("\n")) + "\n"


def _numerics(summary: Summary) -> str:
    return _section(
        "Numerics",
        [],
        tables.cases_by_status(summary),
        tables.failed(summary),
        more_tables.warned_table(summary),
        more_tables.error_table(summary),
        tables.nearest(summary),
        tables.skipped(summary),
    )


def _evidence(bundle: Bundle) -> str:
    return _section(
        "Environment and evidence",
        [],
        tables.pairs("Environment", "what", "version", bundle.environment),
        tables.hashes(bundle.hashes),
    )


def _answers(summary: Summary) -> str:
    lines = [f"- {prose(one.question)} **{prose(one.short)}**: {prose(one.more)}" for one in answers(summary)]
    return "\n".join(["In short:", "", *lines])


def _beside(bundle: Bundle, summary: Summary) -> str:
    lines = ["\n".join(line for one in summary.beside for line in _record(one))]
    shown = [table for one in summary.beside for table in tables_beside(bundle, one.name)]
    return _section("Fit, soak, server, ranks", lines, *shown)


def _record(one: Beside) -> Iterator[str]:
    yield f"- {prose(one.title)}: {_mark(one.status)}: {prose(one.headline)}"
    if one.status in ("missing", "damaged", "stale"):
        yield f"  - {code(one.command)}"


def _glossary() -> str:
    return "## Glossary\n\n" + "\n".join(f"- {prose(name)}: {prose(text)}" for name, text in WORDS.items())


def _mark(status: str) -> str:
    return f"{SIGNS[tone(status)]} {word(status)}"


def _head(summary: Summary) -> str:
    verdict = "✓ Ready" if summary.can_run else "✗ Not ready"
    on = f" on {prose(summary.device)}" if summary.device else ""
    lines = [
        f"# {prose(summary.name)}: {prose(summary.model)}{on}",
        "",
        f"**{verdict}**: {prose(summary.why)}.",
    ]
    problems = [text for stage in summary.stages if stage.status != "pass" for text in stage.problems]
    lines += [""] * bool(problems) + [f"- {prose(text)}" for text in problems[: tables.ROWS]]
    if len(problems) > tables.ROWS:
        lines.append(f"- and {len(problems) - tables.ROWS:,} more, see below")
    if summary.caveats:
        lines += ["", "What this verdict does not cover:", ""]
        lines += [f"- {prose(text)}" for text in summary.caveats]
    return "\n".join(lines)


def _next(summary: Summary) -> str:
    if not summary.next:
        return "## What to do next\n\nNothing blocks, and nothing is left to gain that this report knows of."
    lines = ["## What to do next", ""]
    for number, action in enumerate(summary.next, start=1):
        lines += _action(number, action)
    if summary.more_actions:
        lines.append(f"\n{summary.more_actions:,} more follow once these are done.")
    if any(" RUN" in action.command for action in summary.next):
        lines.append("\nRUN stands for this run's folder.")
    return "\n".join(lines)


def _action(number: int, action: Action) -> Iterator[str]:
    kind = "blocks" if action.blocking else "speeds up"
    worth = f", {share_text(action.share)}" if action.share else ""
    yield f"{number}. **{prose(action.what)}** ({kind}{worth})"
    if action.why:
        yield f"   - {prose(action.why)}"
    yield f"   - {code(action.command)}"


def _stages(summary: Summary) -> str:
    def row(number: int, stage: Stage) -> list[str]:
        return [f"{number} {stage.name}", _mark(stage.status), prose(stage.headline), code(stage.file)]

    rows = [row(number, stage) for number, stage in enumerate(summary.stages, start=1)]
    lines = ["## The five stages", "", *table_lines(["stage", "status", "what came out", "record"], rows, [False] * 4)]
    missing = [stage for stage in summary.stages if stage.status in ("missing", "stale")]
    if missing:
        lines += ["", "This report is incomplete. What is missing, and the command that makes it:", ""]
        lines += [f"- {stage.name}: {code(stage.command)}" for stage in missing]
    return "\n".join(lines)


def _operators(summary: Summary, inventory: Inventory) -> str:
    tail = [tables.gap_table(summary)] if summary.gaps else []
    if summary.replacements:
        tail.append(tables.replacement_table(summary))
    if inventory.blocks:
        tail.append(tables.block_table(inventory))
    gone = [] if summary.gaps else ["No gap is left open."]
    return _section("Operators", gone, *tail, tables.verdicts(summary), tables.operator_table(summary))


def _trace_facts(summary: Summary) -> list[str]:
    size = f"{summary.parameters:,} parameters, {bytes_text(summary.parameter_bytes)} in {prose(summary.dtype)}"
    facts = [f"{code(summary.model_class)}: {size}", f"Fingerprint: {code(summary.fingerprint)}"]
    facts += [f"Changed: {code(f'{name}={value}')}" for name, value in sorted(summary.overrides.items())]
    facts += [f"Adapted by {code(name)}: {prose(text)}" for name, text in sorted(summary.adapted.items())]
    return ["\n".join(f"- {fact}" for fact in facts)]


def _section(title: str, texts: Sequence[str], *shown: Table) -> str:
    return "\n\n".join([f"## {title}", *texts, *(_table(table) for table in shown if table.rows)])


def _table(table: Table) -> str:
    short = [number for number, column in enumerate(table.columns) if column.kind != "notes"]
    notes = [number for number, column in enumerate(table.columns) if column.kind == "notes"]
    heads = [table.columns[number].name for number in short]
    right = [table.columns[number].kind == "number" for number in short]
    rows = [[_cell(table, row[number], number) for number in short] for row in table.rows]
    lines = [f"{table.caption}:", "", *table_lines(heads, rows, right)]
    for number in notes:
        lines += ["", *_notes(table, number)]
    if table.more:
        lines += ["", f"… {table.more}"]
    return "\n".join(lines)


def _cell(table: Table, cell: Cell, number: int) -> str:
    text = clean(" ".join(map(str, cell)) if isinstance(cell, tuple) else cell, limit=100)
    kind = table.columns[number].kind
    if kind == "status":
        return _mark(text)
    if kind == "number":
        return figure(text)
    return code(text, in_table=True) if kind == "code" else prose(text)


def _notes(table: Table, number: int) -> Iterator[str]:
    for row in table.rows:
        cell = row[number]
        texts = (cell,) if isinstance(cell, str) else cell
        if any(texts):
            names = [row[n] for n, column in enumerate(table.columns[:2]) if column.kind == "code"]
            yield f"- {' '.join(code(str(name)) for name in names)}: {_text(texts[0])}"
            yield from (f"  - {_text(text)}" for text in texts[1:])


def _text(text: str | Link) -> str:
    return link(text.label, text.path, text.href) if isinstance(text, Link) else prose(text)

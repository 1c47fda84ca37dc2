"""The closing table of several runs, for people and as JSON, and the exit code of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from rich.table import Table

from day0.cli.run_one import RunResult, StageLine
from day0.cli.stages import STAGES
from day0.cli.talk import Talk, safe
from day0.errors import ExitCode

__all__ = ["as_data", "exit_code", "show_table", "table_rows", "verdict_of"]

SCHEMA = "day0.runs/1"
_WORDS = {0: "ready", 1: "not ready", 2: "bad input", 3: "bug of day0", 130: "interrupted"}
_COLOURS = {"ready": "green", "not ready": "red", "bad input": "red", "bug of day0": "red"}


def exit_code(results: Sequence[RunResult], *, interrupted: bool) -> int:
    """Return 130 if the user interrupted, else the worst: 3 a bug, 2 bad input in any run, 1 any failed, 0."""
    if interrupted:
        return int(ExitCode.INTERRUPTED)
    codes = {int(ExitCode.GATE_FAILED) if one.code is None else one.code for one in results}
    for code in (ExitCode.OUR_BUG, ExitCode.USER_CAN_REPAIR):
        if code in codes:
            return int(code)
    return int(ExitCode.GATE_FAILED if codes - {0} else ExitCode.OK)


def verdict_of(result: RunResult) -> str:
    """Return the word for what became of a run."""
    return "not begun" if result.code is None else _WORDS.get(result.code, f"exit code {result.code}")


def table_rows(results: Sequence[RunResult]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the heads and the rows: run, a cell for each stage, time, verdict."""
    heads = ("run", *(one.name for one in STAGES), "time", "verdict")
    return heads, [_row(one) for one in results]


def show_table(talk: Talk, results: Sequence[RunResult]) -> None:
    """Print the table; what went wrong with a run stands below it."""
    heads, rows = table_rows(results)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        side: Literal["right", "left"] = "right" if head == "time" else "left"
        table.add_column(
            head, overflow="fold", no_wrap=head != "run", justify=side, min_width=12 if head == "run" else 0
        )
    for row in rows:
        colour = _COLOURS.get(row[-1], "yellow")
        table.add_row(*map(safe, row[:-1]), f"[{colour}]{row[-1]}[/{colour}]")
    talk.say("")
    talk.out.print(table)
    for one in results:
        if one.note:
            talk.say(f"{safe(one.name)}: {safe(one.note)}")


def as_data(results: Sequence[RunResult]) -> dict[str, Any]:
    """Return the table as plain data."""
    runs = [{**asdict(one), "verdict": verdict_of(one)} for one in results]
    return {"schema": SCHEMA, "runs": runs, "seconds": round(sum(one.seconds for one in results), 3)}


def _row(result: RunResult) -> tuple[str, ...]:
    lines = {one.stage: one for one in result.stages}
    cells = (_cell(lines.get(one.name)) for one in STAGES)
    return (result.name, *cells, _seconds(result.seconds), verdict_of(result))


def _cell(line: StageLine | None) -> str:
    if line is None:
        return "-"
    return f"{'✓' if line.verdict == 'pass' else '✗'} {'kept' if line.kept else _seconds(line.seconds)}"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"

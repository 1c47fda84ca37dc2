"""`day0 check …`: what stands beside the check itself; signatures only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from day0.cli.options import DEFAULT_RUN, Json, Run, call

__all__ = ["check_app"]

check_app = typer.Typer(rich_markup_mode=None)


@check_app.command("scores")
def check_scores(
    before: Annotated[Path, typer.Argument(help="Answers as they were: JSON list, or one a line.")],
    after: Annotated[Path, typer.Argument(help="Answers as they are now.")],
    drop: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share that may be lost.")] = 0.05,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Of the intervals.")] = 0.95,
    json: Json = False,
) -> None:
    """Say whether a task score fell, or whether so few questions cannot tell.

    Answers are 0, 1, true, false or {"id": ..., "correct": ...}. Exit codes: 0 pass, 1 fail, 125 cannot tell.
    Example: day0 check scores before.json after.json
    """
    call("scores", file="scores", before=before, after=after, drop=drop, confidence=confidence, json=json)


@check_app.command("bisect")
def check_bisect(
    check: Annotated[
        str,
        typer.Option("--check", help="Command line with {run} or {lock}, and {seed}.", metavar="COMMAND"),
    ],
    run: Run = DEFAULT_RUN,
    samples: Annotated[int, typer.Option(min=1, max=1000, help="Seeds to try, from 0.")] = 3,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one run of the command.")] = 600.0,
    json: Json = False,
) -> None:
    """Find which locked implementations make a check of yours fail.

    The command is run with parts of the lock switched off; it ends with 0 for good, 1 for bad, 125 for cannot tell.
    Example: day0 check bisect --run runs/v32 --check "python my_check.py {run} {seed}"
    """
    call("bisect", file="bisect", run=run, check=check, samples=samples, timeout=timeout, json=json)

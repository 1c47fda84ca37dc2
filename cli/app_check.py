"""`day0 check`, what stands beside it, and `day0 repro`; signatures only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from day0.cli.options import DEFAULT_RUN, CaseTimeout, Force, Frozen, Jobs, Json, Locked, Plant, Run, With, call

__all__ = ["add_repro", "check_app"]

check_app = typer.Typer(rich_markup_mode=None)


@check_app.callback(invoke_without_command=True)
def check(
    context: typer.Context,
    run: Run = DEFAULT_RUN,
    jobs: Jobs = 0,
    case_timeout: CaseTimeout = None,
    expect: Annotated[
        Path | None,
        typer.Option("--expect", help="YAML list of cases that are known to fail, with reasons.", metavar="FILE"),
    ] = None,
    level: Annotated[
        str | None, typer.Option(help="ops (operators one by one), model (the whole model) or all.", metavar="LEVEL")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=1 << 62, help="Seed of all values.")] = None,
    locked: Locked = False,
    frozen: Frozen = False,
    plant: Plant = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Derive cases from every traced call, and try the forms that take long.")
    ] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Check the numerics of every traced signature on the device, and of the whole model.

    Each failed case leaves a folder that `day0 repro` runs. Example: day0 check --run runs/v32

    With a list of known failures: day0 check --run runs/v32 --expect known.yaml
    """
    if context.invoked_subcommand is None:
        call(
            "stage",
            name="check",
            run=run,
            level=level,
            seed=seed,
            jobs=jobs,
            case_timeout=case_timeout,
            expect=expect,
            locked=locked,
            frozen=frozen,
            plant=plant or [],
            thorough=thorough,
            force=force,
            json=json,
        )


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


def add_repro(app: typer.Typer) -> None:
    """Add `day0 repro` to the program."""
    app.command("repro")(_repro)


def _repro(
    folder: Annotated[Path, typer.Argument(help="A folder below repro/ of a run folder.", metavar="DIR")],
    with_: With = None,
    case_timeout: CaseTimeout = None,
    json: Json = False,
) -> None:
    """Run one failed case again: exit code 1 while it fails, 0 once it passes.

    Example: day0 repro runs/v32/repro/0123456789abcdef-ordinary-0
    """
    call("repro", file="repro", folder=folder, load=with_ or [], case_timeout=case_timeout, json=json)

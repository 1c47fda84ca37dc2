"""`day0 run` and `day0 status`: signatures; what they do stands in `run.py` and `commands.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from day0.cli import complete
from day0.cli.options import (
    DEFAULT_RUN,
    AllowUnverified,
    Device,
    Force,
    Frozen,
    Json,
    Locked,
    Plant,
    Replace,
    Replacements,
    Run,
    With,
    Without,
    call,
)

__all__ = ["add_run"]


def add_run(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command("run")(_run)
    app.command("status")(_status)


def _run(
    playbooks: Annotated[
        list[Path],
        typer.Argument(
            help="Playbooks in YAML, or names of those that ship with day0.",
            metavar="PLAYBOOK...",
            autocompletion=complete.playbooks,
        ),
    ],
    run: Annotated[
        Path | None,
        typer.Option("--run", help="Run folder, or the folder of several; else runs/<name>.", metavar="DIR"),
    ] = None,
    var: Annotated[
        list[str] | None, typer.Option("--var", help="Value of a variable of the playbook.", metavar="NAME=VALUE")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only runs of this name, or pattern: '*-sim'.", metavar="NAME")
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, max=64, help="Runs side by side, each a process of its own.")] = 1,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop all runs once one has failed.")] = False,
    device: Device = None,
    with_: With = None,
    without: Without = None,
    replacements: Replacements = None,
    replace: Replace = None,
    allow_unverified: AllowUnverified = False,
    locked: Locked = False,
    frozen: Frozen = False,
    plant: Plant = None,
    force: Force = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and why, and end.")] = False,
    ci: Annotated[
        bool,
        typer.Option(
            "--ci", help="No colours, no progress; the job summary goes to $GITHUB_STEP_SUMMARY if it is set."
        ),
    ] = False,
    annotations: Annotated[
        str, typer.Option("--annotations", help="github: failures as workflow commands on stdout.", metavar="FORM")
    ] = "",
    artifacts: Annotated[
        Path | None, typer.Option("--artifacts", help="Copy reports and evidence of each run there.", metavar="DIR")
    ] = None,
    json: Json = False,
) -> None:
    """Walk all five stages of each playbook and write the reports; what is fresh is not run again.

    A playbook with a matrix asks for several runs, each in a folder of its own; a table closes them.

    Exit code: 1 if any run failed, 2 if any had bad input.

    Example: day0 run playbooks/toy-on-sim.yaml

    Two runs side by side: day0 run toy-on-sim deepseek-v32-tiny-on-sim --parallel 2

    Some runs of a matrix: day0 run matrix.yaml --var tokens=16 --only "*-sim" --fail-fast

    In a pipeline: day0 run toy-on-sim --ci --annotations github --artifacts out
    """
    call(
        "run",
        file="run",
        playbooks=playbooks,
        run=run,
        variables=var or [],
        only=only or [],
        parallel=parallel,
        fail_fast=fail_fast,
        device=device,
        load=with_ or [],
        without=without or [],
        replacements=replacements,
        replace=replace or [],
        allow_unverified=allow_unverified,
        locked=locked,
        frozen=frozen,
        plant=plant or [],
        force=force,
        dry_run=dry_run,
        ci=ci,
        annotations=annotations,
        artifacts=artifacts,
        json=json,
    )


def _status(run: Run = DEFAULT_RUN, json: Json = False) -> None:
    """Say of each stage whether it is fresh, stale or missing, why, and how long it took.

    Example: day0 status --run runs/toy-on-sim
    """
    call("status", run=run, json=json)

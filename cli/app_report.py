"""`day0 report` and what stands below it; signatures only."""

from __future__ import annotations

from typing import Annotated

import typer

from day0.cli.options import DEFAULT_RUN, Json, Run, call

__all__ = ["report_app"]

report_app = typer.Typer(rich_markup_mode=None)


@report_app.callback(invoke_without_command=True)
def report(
    context: typer.Context,
    run: Run = DEFAULT_RUN,
    ci: Annotated[
        bool, typer.Option("--ci", help="Print annotations, and add the job's summary where GitHub asks for one.")
    ] = False,
    json: Json = False,
) -> None:
    """Write the report of a run folder: HTML, Markdown, JSON and JUnit, and annotations for GitHub and GitLab.

    Example: day0 report --run runs/toy-on-sim

    In a pipeline: day0 report --run runs/toy-on-sim --ci
    """
    if context.invoked_subcommand is None:
        call("report", file="report", run=run, ci=ci, json=json)


@report_app.command("verify")
def report_verify(run: Run = DEFAULT_RUN, json: Json = False) -> None:
    """Recompute the evidence of a run folder: exit code 1 and the name of each file that is not as it was.

    Hashes of the records and of what they were made from, the plan, the sources of locked implementations, journals,
    kept locks, files that records name, and every file against report/manifest.json, which the report writes last.
    Nothing of the folder is run. It finds what was damaged, mixed up or changed by hand; whoever changes a record and
    also recomputes every hash is outside of what it can find: for that, keep the manifest's hash elsewhere.

    Example: day0 report verify --run runs/toy-on-sim
    """
    call("verify", file="verify", run=run, json=json)

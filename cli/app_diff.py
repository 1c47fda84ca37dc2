"""`day0 diff` and `day0 schema`; signatures only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from day0.cli import complete
from day0.cli.options import Json, call

__all__ = ["add_diff"]


def add_diff(app: typer.Typer) -> None:
    """Add `day0 diff` and `day0 schema` to the program."""
    app.command("diff")(_diff)
    app.command("schema")(_schema)


def _diff(
    old: Annotated[Path, typer.Argument(help="Run folder or record, as it was.", autocompletion=complete.run_folders)],
    new: Annotated[
        Path | None, typer.Argument(help="Run folder or record, as it is now.", autocompletion=complete.run_folders)
    ] = None,
    phases: Annotated[
        tuple[str, str] | None, typer.Option("--phases", help="Compare two phases of one trace.", metavar="A B")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="trace, inventory, register, check, canary, endpoint or ranks.", metavar="KIND"),
    ] = None,
    gate: Annotated[
        bool | None,
        typer.Option("--gate/--no-gate", help="Exit code 1 if anything is worse, whatever is compared; or never."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Show every change.")] = False,
    form: Annotated[str, typer.Option("--format", help="terminal, markdown or html.")] = "terminal",
    output: Annotated[Path | None, typer.Option("-o", "--out", help="File for the format.", metavar="FILE")] = None,
    json: Json = False,
) -> None:
    """Say what changed between two runs, or between two phases: what is worse first.

    Exit code 1 on a regression: both sides are of one model on one device, and there is a new gap, a worse verdict, an
    implementation of a lower kind, a case or stage that fails or is skipped and passed, an error that doubled beyond the
    dtype's own, a gate that flipped or went 10 % of the way to its limit, or an operator that takes 1 % of a pass and is
    slower by 10 % of simulated time or 25 % of a device's. Other models or devices differ without failing. docs/diff.md.

    Example: day0 diff runs/before runs/after

    Example: day0 diff runs/before runs/after --format html -o diff.html

    Example: day0 diff runs/v32 --phases prefill decode
    """
    call(
        "diff",
        file="diff",
        old=old,
        new=new,
        phases=phases,
        only=only or [],
        gate=gate,
        everything=all_,
        json=json,
        form=form,
        output=output,
    )


def _schema(
    name: Annotated[str, typer.Argument(help="trace, playbook, ...; without a name all of them are listed.")] = "",
    out: Annotated[Path | None, typer.Option("--out", help="Write into this folder.", metavar="DIR")] = None,
) -> None:
    """Print the JSON Schema of a record or of playbooks.

    Example: day0 schema playbook > playbook.schema.json

    An editor completes a playbook that begins with: # yaml-language-server: $schema=playbook.schema.json
    """
    call("schema", file="schemas", name=name, out=out)

"""`day0 selftest`: the signature; what it does stands in `selftest.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from day0.cli.options import Json, call

__all__ = ["add_selftest"]


def add_selftest(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("selftest")(_selftest)


def _selftest(
    device: Annotated[str, typer.Option("--device", help="Profile of the simulated device.", metavar="NAME")] = "sim",
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Seeds over which kernels that are right are checked.")
    ] = 10,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only this planted fault, or the faults of this family; repeat it.", metavar="NAME"),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Processes that check.")] = 2,
    usual: Annotated[
        bool, typer.Option("--usual/--no-usual", help="Measure the usual rules on the same cases.")
    ] = True,
    json: Json = False,
) -> None:
    """Plant every known fault and say which the check reports; check what is right and count false alarms.

    Exit code 1 if less than 99 % of the faults are found, or if anything right is reported.

    Example: day0 selftest --only views --seeds 2
    """
    call("selftest", file="selftest", device=device, seeds=seeds, only=only or [], jobs=jobs, usual=usual, json=json)

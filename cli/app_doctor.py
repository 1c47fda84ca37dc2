"""`day0 doctor`: the signature; what it does stands in `doctor.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from day0.cli import complete
from day0.cli.options import Json, call

__all__ = ["add_doctor"]


def add_doctor(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("doctor")(_doctor)


def _doctor(
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="core, devices, extras, compiler, plugins or machine; repeat it.", metavar="AREA"),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            help="Profile or YAML file of a device that has to work too.",
            metavar="NAME",
            autocompletion=complete.devices,
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds until something counts as hung.")] = 60.0,
    json: Json = False,
) -> None:
    """Say what works here, what is missing and how to install it, and what is broken and why.

    Everything is tried in a process of its own: a package that raises, hangs or crashes is a line, not the end.

    Exit code: 0 if day0 can work, 2 if it cannot: no torch, or no simulated device. What is merely missing is no failure.

    Example: day0 doctor

    Before a run on a card: day0 doctor --only core --only devices --device cuda
    """
    call("doctor", file="doctor", only=only or [], device=device or [], timeout=timeout, json=json)

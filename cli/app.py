"""The command line. Each command is a signature; what it does stands in `commands.py` or `ops.py`, loaded when it runs.

`day0 --help` must not import torch or pydantic, so nothing here imports more than typer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from day0.cli import complete, complete_bash
from day0.cli.app_canary import canary_app
from day0.cli.app_check import add_repro, check_app
from day0.cli.app_convert import convert_app
from day0.cli.app_devices import device_app
from day0.cli.app_diff import add_diff
from day0.cli.app_doctor import add_doctor
from day0.cli.app_model import add_fit, add_trace
from day0.cli.app_ops import ops_app
from day0.cli.app_report import report_app
from day0.cli.app_run import add_run
from day0.cli.app_selftest import add_selftest
from day0.cli.help_pages import HelpGroup
from day0.cli.options import (
    DEFAULT_RUN,
    Device,
    Fallback,
    Force,
    Json,
    Namespace,
    Replace,
    Replacements,
    Run,
    With,
    Without,
    call,
)

__all__ = ["app", "main"]

STAGES = ("trace", "inventory", "matrix", "register", "check", "canary", "run", "status", "report", "diff")


class _InOrder(HelpGroup):
    """The stages in the order in which they are walked, then the rest."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # typer's own context
        """Return the names as `--help` shows them."""
        names = super().list_commands(ctx)
        return [*(name for name in STAGES if name in names), *(name for name in names if name not in STAGES)]


app = typer.Typer(
    name="day0",
    cls=_InOrder,
    help="Walk a newly released PyTorch model onto an accelerator it was never written for.\n\n"
    "Five stages, each with a record in the run folder: trace, inventory, register, check, canary. "
    "`day0 run` walks them all.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(canary_app, name="canary")
app.add_typer(check_app, name="check")
app.add_typer(convert_app, name="convert")
app.add_typer(device_app, name="device")
app.add_typer(ops_app, name="ops")
app.add_typer(report_app, name="report")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version, torch's and Python's, and end.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --version: also the devices, which imports torch.")
    ] = False,
) -> None:
    if version:
        call("version", file="version", verbose=verbose)


@app.command()
def inventory(
    run: Run = DEFAULT_RUN, device: Device = None, with_: With = None, force: Force = False, json: Json = False
) -> None:
    """Say what the device lacks for the traced model, and what to do first.

    Example: day0 inventory --run runs/v32 --device sim
    """
    call("stage", name="inventory", run=run, device=device, load=with_ or [], force=force, json=json)


@app.command()
def matrix(
    device: Annotated[
        list[str],
        typer.Option(
            "--device", help="Profile or YAML file; repeat it.", metavar="NAME", autocompletion=complete.devices
        ),
    ],
    run: Run = DEFAULT_RUN,
    with_: With = None,
    csv: Annotated[Path | None, typer.Option(help="Write the whole table as CSV.", metavar="FILE")] = None,
    json: Json = False,
) -> None:
    """Show side by side what several devices lack for the traced model; changes nothing in the run folder.

    Example: day0 matrix --run runs/v32 --device s5000 --device sim --device cuda --csv support.csv
    """
    call("matrix", file="matrix", run=run, devices=device, load=with_ or [], csv=csv, json=json)


@app.command()
def register(
    run: Run = DEFAULT_RUN,
    device: Device = None,
    with_: With = None,
    without: Without = None,
    namespace: Namespace = None,
    fallback: Fallback = None,
    replacements: Replacements = None,
    replace: Replace = None,
    upgrade: Annotated[
        list[str] | None,
        typer.Option(
            "--upgrade",
            help="Choose anew for this operator only.",
            metavar="OPERATOR",
            autocompletion=complete.operators,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 if the lock would change.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse ties that no traced call has reached yet.")] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Choose an implementation for every gap and lock the choice.

    Example: day0 register --run runs/v32 --namespace deepseek/v3.2 --with my_kernels.py
    """
    call(
        "stage",
        name="register",
        run=run,
        device=device,
        load=with_ or [],
        without=without or [],
        namespace=namespace,
        fallback=fallback,
        replacements=replacements,
        replace=replace or [],
        upgrade=upgrade or [],
        check=check,
        strict=strict,
        force=force,
        json=json,
    )


add_trace(app)
add_run(app)
add_diff(app)
add_fit(app)
add_repro(app)
add_selftest(app)
add_doctor(app)


def main() -> None:
    """Entry point of the `day0` command."""
    if complete_bash.asked():
        complete_bash.answer(lambda: app(prog_name="day0"))
    app(prog_name="day0")

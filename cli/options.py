"""Options that several commands share, and the way from a signature to the function that does the work."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import typer

from day0.cli import complete
from day0.cli.failures import run_guarded

__all__ = [
    "DEFAULT_RUN",
    "AllowUnverified",
    "CaseTimeout",
    "Device",
    "Fallback",
    "Force",
    "Frozen",
    "Jobs",
    "Json",
    "Locked",
    "Namespace",
    "Plant",
    "Replace",
    "Replacements",
    "Run",
    "Set",
    "With",
    "Without",
    "call",
]

Run = Annotated[Path, typer.Option("--run", help="Run folder.", metavar="DIR", autocompletion=complete.run_folders)]
Json = Annotated[bool, typer.Option("--json", help="Print the record on stdout, all talk on stderr.")]
Force = Annotated[bool, typer.Option("--force", help="Make it again even if it is fresh.")]
Device = Annotated[
    str | None,
    typer.Option("--device", help="Profile name or YAML file.", metavar="NAME", autocompletion=complete.devices),
]
With = Annotated[
    list[Path] | None,
    typer.Option("--with", help="Python file with implementations of your own; runs your code.", metavar="FILE"),
]
Without = Annotated[
    list[str] | None,
    typer.Option("--without", help="Leave out what this installed package brings.", metavar="PACKAGE"),
]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change a config field.", metavar="KEY=VALUE")]
Namespace = Annotated[str | None, typer.Option(help="Where to look first, such as kimi/k3.1.")]
Fallback = Annotated[str | None, typer.Option(help="Last resort: cpu, device or none.")]
Replacements = Annotated[
    bool | None,
    typer.Option("--replacements/--no-replacements", help="Without them every gap stays open: shows what is lacking."),
]
Replace = Annotated[
    list[str] | None,
    typer.Option(
        "--replace",
        help="Replace this operator though the device has it.",
        metavar="OPERATOR",
        autocompletion=complete.operators,
    ),
]
Locked = Annotated[bool, typer.Option("--locked", help="Fail if the lock would change.")]
Frozen = Annotated[bool, typer.Option("--frozen", help="Take the lock as it is, without choosing anew.")]
AllowUnverified = Annotated[
    bool, typer.Option("--allow-unverified", help="Enter with a lock whose numerics did not pass; is recorded.")
]
Plant = Annotated[
    list[str] | None,
    typer.Option(
        "--plant",
        help="Plant a fault on the simulated device; see `day0 device faults`.",
        metavar="NAME",
        autocompletion=complete.faults,
    ),
]
Jobs = Annotated[int, typer.Option(min=0, max=256, help="Processes that run cases; 0 for as many as fit.")]
CaseTimeout = Annotated[
    float | None,
    typer.Option(min=0.1, max=1e6, help="Seconds for one call on the device; else from what it costs."),
]
DEFAULT_RUN = Path("runs/default")


def call(command: str, *, file: str = "commands", **options: Any) -> None:
    """Run `day0.cli.FILE:COMMAND` and end with its exit code; it is imported only now."""

    def act() -> int:
        return int(resolve_name(f"day0.cli.{file}:{command}")(**options))

    raise typer.Exit(run_guarded(act))

"""`day0 device …`: signatures; what they do stands in `devices.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from day0.cli import complete
from day0.cli.options import Json, call

__all__ = ["device_app"]

device_app = typer.Typer(help="Device profiles.", no_args_is_help=True, rich_markup_mode=None)


@device_app.command("list")
def device_list(json: Json = False) -> None:
    """List the profiles that ship with day0."""
    call("device_list", file="devices", json=json)


@device_app.command("show")
def device_show(
    name: Annotated[str, typer.Argument(help="Profile name or YAML file.", autocompletion=complete.devices)],
    json: Json = False,
) -> None:
    """Show a profile: what the device lacks, with the evidence."""
    call("device_show", file="devices", name=name, json=json)


@device_app.command("schema")
def device_schema() -> None:
    """Print the JSON Schema of a profile, for editors that complete and check YAML."""
    call("device_schema", file="devices")


@device_app.command("probe")
def device_probe(
    device: Annotated[
        str,
        typer.Option(
            "--device", help="Profile, YAML file or torch device.", metavar="NAME", autocompletion=complete.devices
        ),
    ],
    trace: Annotated[
        list[Path] | None,
        typer.Option(
            help="trace.json or run folder with the calls to try, more than once if you like; else the toy's."
        ),
    ] = None,
    suite: Annotated[
        bool, typer.Option("--suite/--no-suite", help="Try the built-in suite of ordinary operators too.")
    ] = True,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", help="Module or Python file for the worker to import; runs its code."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds after which a call counts as hung.")] = 30.0,
    max_mib: Annotated[int, typer.Option(min=1, help="Skip calls with more memory than that.")] = 256,
    rates: Annotated[bool, typer.Option("--rates/--no-rates", help="Measure bandwidth and peak rates.")] = True,
    out: Annotated[Path | None, typer.Option(help="Profile to write; else NAME.probed.yaml here.")] = None,
    json: Json = False,
) -> None:
    """Try calls on a device in worker processes and write what it can do as a profile, with the evidence.

    A call that crashes or hangs ends its worker and stands in the profile.
    Example: day0 device probe --device cuda --trace runs/v32
    """
    call(
        "device_probe",
        file="devices",
        device=device,
        traces=trace or [],
        suite=suite,
        imports=imports or [],
        timeout=timeout,
        max_mib=max_mib,
        rates=rates,
        out=out,
        json=json,
    )


@device_app.command("faults")
def device_faults(json: Json = False) -> None:
    """List the faults that can be planted on the simulated device, and the differences that are none.

    Example: day0 check --run runs/toy-on-sim --plant rope_other_pairing
    """
    call("device_faults", file="devices", json=json)

"""The command line. Each command is a signature; what it does stands in `commands.py` or `ops.py`, loaded when it runs.

`day0 --help` must not import torch or pydantic, so nothing here imports more than typer.
"""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import typer

from day0 import __version__
from day0.cli.failures import run_guarded

__all__ = ["app", "main"]

app = typer.Typer(
    name="day0",
    help="Walk a newly released PyTorch model onto an accelerator it was never written for.\n\n"
    "Five stages, each with a record in the run folder: trace, inventory, register, check, canary. "
    "`day0 run` walks them all.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
device_app = typer.Typer(help="Device profiles.", no_args_is_help=True, rich_markup_mode=None)
ops_app = typer.Typer(help="Operators and their implementations.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(device_app, name="device")
app.add_typer(ops_app, name="ops")

Run = Annotated[Path, typer.Option("--run", help="Run folder.", metavar="DIR")]
Json = Annotated[bool, typer.Option("--json", help="Print the record on stdout, all talk on stderr.")]
Force = Annotated[bool, typer.Option("--force", help="Make it again even if it is fresh.")]
Device = Annotated[str | None, typer.Option("--device", help="Profile name or YAML file.", metavar="NAME")]
With = Annotated[
    list[Path] | None, typer.Option("--with", help="Python file with implementations of your own; runs your code.")
]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change a config field.", metavar="KEY=VALUE")]
Namespace = Annotated[str | None, typer.Option(help="Where to look first, such as kimi/k3.1.")]
Fallback = Annotated[str | None, typer.Option(help="Last resort: cpu, device or none.")]
Replacements = Annotated[
    bool | None,
    typer.Option("--replacements/--no-replacements", help="Without them every gap stays open: shows what is lacking."),
]
AllowUnverified = Annotated[
    bool, typer.Option("--allow-unverified", help="Enter with a lock whose numerics did not pass; is recorded.")
]
Plant = Annotated[
    list[str] | None,
    typer.Option("--plant", help="Plant a fault on the simulated device; see `day0 device faults`.", metavar="NAME"),
]
DEFAULT_RUN = Path("runs/default")


def _call(command: str, *, file: str = "commands", **options: Any) -> None:
    def act() -> int:
        return int(resolve_name(f"day0.cli.{file}:{command}")(**options))

    raise typer.Exit(run_guarded(act))


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False) -> None:
    if version:
        typer.echo(f"day0 {__version__}")
        raise typer.Exit(0)


@app.command()
def trace(
    model: Annotated[str, typer.Argument(help="toy, hf:<model_type>, hf:<folder> or py:<module>:<factory>.")],
    run: Run = DEFAULT_RUN,
    set_: Set = None,
    dtype: Annotated[str, typer.Option(help="Dtype of the weights.")] = "bfloat16",
    mode: Annotated[str, typer.Option(help="auto, meta, fake or real.")] = "auto",
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Make the config small: few layers of each kind, few experts.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, help="Sequences in a batch.")] = 1,
    phase: Annotated[
        list[str] | None, typer.Option(help="Phase as NAME=TOKENS or NAME=TOKENS@CONTEXT.", metavar="PHASE")
    ] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Run Python code that comes with the checkpoint.")] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Record which operators a model calls, with which shapes, in which phase.

    Example: day0 trace hf:deepseek_v32 --run runs/v32
    """
    _call(
        "trace",
        model=model,
        run=run,
        sets=set_ or [],
        dtype=dtype,
        mode=mode,
        shrink=shrink,
        batch=batch,
        phases=phase or [],
        trust_remote_code=trust_remote_code,
        force=force,
        json=json,
    )


@app.command()
def inventory(
    run: Run = DEFAULT_RUN, device: Device = None, with_: With = None, force: Force = False, json: Json = False
) -> None:
    """Say what the device lacks for the traced model, and what to do first.

    Example: day0 inventory --run runs/v32 --device sim
    """
    _call("stage", name="inventory", run=run, device=device, load=with_ or [], force=force, json=json)


@app.command()
def register(
    run: Run = DEFAULT_RUN,
    device: Device = None,
    with_: With = None,
    namespace: Namespace = None,
    fallback: Fallback = None,
    replacements: Replacements = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Choose an implementation for every gap and lock the choice.

    Example: day0 register --run runs/v32 --namespace deepseek/v3.2 --with my_kernels.py
    """
    _call(
        "stage",
        name="register",
        run=run,
        device=device,
        load=with_ or [],
        namespace=namespace,
        fallback=fallback,
        replacements=replacements,
        force=force,
        json=json,
    )


@app.command()
def check(run: Run = DEFAULT_RUN, plant: Plant = None, force: Force = False, json: Json = False) -> None:
    """Check the numerics of every traced signature on the device.

    Example: day0 check --run runs/v32
    """
    _call("stage", name="check", run=run, plant=plant or [], force=force, json=json)


@app.command()
def canary(
    run: Run = DEFAULT_RUN,
    allow_unverified: AllowUnverified = False,
    plant: Plant = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Run the model on the device, step by step wider, and stop at the first broken gate.

    Example: day0 canary --run runs/v32
    """
    _call("stage", name="canary", run=run, allow_unverified=allow_unverified, plant=plant or [], force=force, json=json)


@app.command("run")
def run_(
    playbook: Annotated[Path, typer.Argument(help="A playbook in YAML, or the name of one that ships with day0.")],
    run: Annotated[Path | None, typer.Option("--run", help="Run folder; else runs/<name>.", metavar="DIR")] = None,
    device: Device = None,
    with_: With = None,
    replacements: Replacements = None,
    allow_unverified: AllowUnverified = False,
    plant: Plant = None,
    force: Force = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and why, and end.")] = False,
    json: Json = False,
) -> None:
    """Walk all five stages of a playbook and write the report; what is fresh is not run again.

    Example: day0 run playbooks/toy-on-sim.yaml
    """
    _call(
        "run",
        playbook=playbook,
        run=run,
        device=device,
        load=with_ or [],
        replacements=replacements,
        allow_unverified=allow_unverified,
        plant=plant or [],
        force=force,
        dry_run=dry_run,
        json=json,
    )


@app.command()
def status(run: Run = DEFAULT_RUN, json: Json = False) -> None:
    """Say of each stage whether it is fresh, stale or missing, and why.

    Example: day0 status --run runs/toy-on-sim
    """
    _call("status", run=run, json=json)


@app.command()
def report(run: Run = DEFAULT_RUN, json: Json = False) -> None:
    """Write the report of a run folder: HTML, Markdown, JSON and JUnit.

    Example: day0 report --run runs/toy-on-sim
    """
    _call("report", run=run, json=json)


@device_app.command("list")
def device_list(json: Json = False) -> None:
    """List the profiles that ship with day0."""
    _call("device_list", file="devices", json=json)


@device_app.command("show")
def device_show(name: Annotated[str, typer.Argument(help="Profile name or YAML file.")], json: Json = False) -> None:
    """Show a profile: what the device lacks, with the evidence."""
    _call("device_show", file="devices", name=name, json=json)


@device_app.command("schema")
def device_schema() -> None:
    """Print the JSON Schema of a profile, for editors that complete and check YAML."""
    _call("device_schema", file="devices")


@device_app.command("probe")
def device_probe(
    device: Annotated[str, typer.Option("--device", help="Profile, YAML file or torch device.", metavar="NAME")],
    trace: Annotated[
        Path | None, typer.Option(help="trace.json or run folder with the calls to try; else the toy's.")
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
    _call(
        "device_probe",
        file="devices",
        device=device,
        trace=trace,
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
    _call("device_faults", file="devices", json=json)


@ops_app.command("list")
def ops_list(with_: With = None, json: Json = False) -> None:
    """List operators with contract version, implementations and whose code they were compared with."""
    _call("ops_list", file="ops", load=with_ or [], json=json)


@ops_app.command("show")
def ops_show(
    name: Annotated[str, typer.Argument(help="Operator, such as day0::topk_tokens.")],
    with_: With = None,
    json: Json = False,
) -> None:
    """Show the contract of an operator: mathematics, attributes, tolerance, samples, comparisons, implementations.

    Example: day0 ops show day0::rms_norm
    """
    _call("ops_show", file="ops", name=name, load=with_ or [], json=json)


@ops_app.command("verify")
def ops_verify(
    name: Annotated[str | None, typer.Argument(help="Operator, such as day0::topk_tokens; else all.")] = None,
    json: Json = False,
) -> None:
    """Compare references with other people's code, as far as it is installed; exit code 1 if one differs.

    Example: day0 ops verify day0::rms_norm
    """
    _call("ops_verify", file="ops", name=name, json=json)


def main() -> None:
    """Entry point of the `day0` command."""
    app()

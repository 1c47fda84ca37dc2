"""The command line. Each command is a signature; what it does stands in `commands.py` or `ops.py`, loaded when it runs.

`day0 --help` must not import torch or pydantic, so nothing here imports more than typer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from day0 import __version__
from day0.cli import complete, complete_bash
from day0.cli.app_canary import canary_app
from day0.cli.app_check import add_repro, check_app
from day0.cli.app_convert import convert_app
from day0.cli.app_devices import device_app
from day0.cli.app_doctor import add_doctor
from day0.cli.app_ops import ops_app
from day0.cli.app_report import report_app
from day0.cli.app_run import add_run
from day0.cli.app_selftest import add_selftest
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
    Set,
    With,
    Without,
    call,
)

__all__ = ["app", "main"]

STAGES = ("trace", "inventory", "matrix", "register", "check", "canary", "run", "status", "report", "diff")


class _InOrder(TyperGroup):
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
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False) -> None:
    if version:
        typer.echo(f"day0 {__version__}")
        raise typer.Exit(0)


@app.command()
def trace(
    model: Annotated[
        str,
        typer.Argument(
            help="toy, hf:<type or folder>, py:<module or file>:<factory>, export:<file.pt2> or inputs:<text file>.",
            autocompletion=complete.models,
        ),
    ],
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
    adapt: Annotated[
        list[str] | None,
        typer.Option(
            help="Let modules call day0's operators: an adapter, or all; see docs/adapters.md.", metavar="NAME"
        ),
    ] = None,
    world_size: Annotated[
        int, typer.Option(min=1, help="Trace one rank of so many, cut by the model's own tensor-parallel plan.")
    ] = 1,
    level: Annotated[
        str, typer.Option(help="What to show: call (functions as the model calls them), op (operators) or both.")
    ] = "both",
    shapes: Annotated[
        list[str] | None,
        typer.Option(help="Show the shapes of this operator or function with their counts.", metavar="NAME"),
    ] = None,
    capture: Annotated[
        bool,
        typer.Option("--capture", help="Keep the values of the traced calls, for `day0 check`; traces in mode real."),
    ] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Record which operators a model calls, with which shapes, in which phase.

    Example: day0 trace hf:deepseek_v32 --run runs/v32

    One rank of eight: day0 trace hf:deepseek_v32 --world-size 8 --run runs/v32-tp8

    A checkpoint with its own weights: day0 trace hf:path/to/folder --mode real --run runs/mine

    A model of your own: day0 trace py:my_models.py:make_block --set dim=128 --run runs/block

    Norms as one operator each: day0 trace hf:llama --adapt rms_norm --run runs/llama
    """
    call(
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
        adapt=adapt or [],
        world_size=world_size,
        level=level,
        shapes=shapes or [],
        capture=capture,
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


@app.command()
def diff(
    old: Annotated[Path, typer.Argument(help="Run folder or record, as it was.", autocompletion=complete.run_folders)],
    new: Annotated[
        Path | None, typer.Argument(help="Run folder or record, as it is now.", autocompletion=complete.run_folders)
    ] = None,
    phases: Annotated[
        tuple[str, str] | None, typer.Option("--phases", help="Compare two phases of one trace.", metavar="A B")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="trace, inventory, register, check or canary.", metavar="KIND"),
    ] = None,
    gate: Annotated[bool, typer.Option("--gate", help="Exit code 1 if anything is worse.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Show every change.")] = False,
    json: Json = False,
) -> None:
    """Say what changed between two runs, or between two phases: what is worse first.

    A difference is no failure: the exit code is 0, and 1 with --gate if anything is worse.
    Example: day0 diff runs/before runs/after --gate
    Example: day0 diff runs/v32 --phases prefill decode
    """
    call("diff", file="diff", old=old, new=new, phases=phases, only=only or [], gate=gate, everything=all_, json=json)


@app.command()
def schema(
    name: Annotated[str, typer.Argument(help="trace, playbook, ...; without a name all of them are listed.")] = "",
    out: Annotated[Path | None, typer.Option("--out", help="Write into this folder.", metavar="DIR")] = None,
) -> None:
    """Print the JSON Schema of a record or of playbooks.

    Example: day0 schema playbook > playbook.schema.json

    An editor completes a playbook that begins with: # yaml-language-server: $schema=playbook.schema.json
    """
    call("schema", file="schemas", name=name, out=out)


@app.command("export-inputs")
def export_inputs(
    run: Run = DEFAULT_RUN,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; else stdout.", metavar="FILE")] = None,
    extended: Annotated[
        bool, typer.Option("--extended", help="Also write what only day0 reads: offsets, ranges, fp8 dtypes.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that says something else.")] = False,
    json: Json = False,
) -> None:
    """Write the trace as the public text of traced inputs; an imported one comes back byte for byte.

    The way in is a source: day0 trace inputs:FILE.
    Example: day0 export-inputs --run runs/v32 --out v32.txt
    """
    call("export_inputs", file="traced_inputs", run=run, out=out, extended=extended, force=force, json=json)


@app.command()
def fit(
    model: Annotated[
        str, typer.Argument(help="toy, hf:<model_type>, hf:<folder>, py:<module>:<factory>, or a described model.")
    ],
    device: Device = None,
    memory_gib: Annotated[float | None, typer.Option(help="Memory of one card; 80 without a device.")] = None,
    format: Annotated[
        str, typer.Option(help="Weights: mxfp4, fp8, bf16, ... or KIND=FORMAT,...; else as the model's config says.")
    ] = "",
    kv_format: Annotated[str, typer.Option(help="Keys and values in the cache: bf16 or fp8.")] = "bf16",
    index_format: Annotated[str, typer.Option(help="Keys of indexers in the cache: fp8 or bf16.")] = "fp8",
    workspace: Annotated[
        str | None,
        typer.Option(help="Four-bit experts are converted to fp8 or bf16 while running, or none of them is."),
    ] = None,
    context: Annotated[int, typer.Option(min=0, max=1 << 30, help="Tokens of a sequence; else the model's.")] = 0,
    batch: Annotated[int, typer.Option(min=1, max=1 << 24, help="Sequences at one time, on all cards.")] = 1,
    chunk: Annotated[int, typer.Option(min=1, max=1 << 20, help="Tokens of a prompt run at one time.")] = 2048,
    layout: Annotated[str, typer.Option(help="Such as tp=8,ep=8,pp=1,dp=1; else the smallest.", metavar="LAYOUT")] = "",
    cards: Annotated[int, typer.Option(min=0, max=1 << 16, help="Find the best layout of so many cards.")] = 0,
    node: Annotated[int, typer.Option(min=1, max=1024, help="Cards of one host, within which tp stays.")] = 8,
    reserve: Annotated[float, typer.Option(min=0.0, max=0.9, help="Share of the memory that is left alone.")] = 0.1,
    train: Annotated[bool, typer.Option("--train", help="Training in bfloat16 with Adam, a chunk a sequence.")] = False,
    set_: Set = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Run Python code that comes with the checkpoint.")] = False,
    json: Json = False,
) -> None:
    """Say how many cards a model needs, and what takes their memory.

    Example: day0 fit hf:deepseek_v32 --format fp8 --memory-gib 80 --batch 32
    """
    call(
        "fit",
        file="fit",
        model=model,
        device=device,
        memory_gib=memory_gib,
        format=format,
        kv_format=kv_format,
        index_format=index_format,
        workspace=workspace,
        context=context,
        batch=batch,
        chunk=chunk,
        layout=layout,
        cards=cards,
        node=node,
        reserve=reserve,
        train=train,
        sets=set_ or [],
        trust_remote_code=trust_remote_code,
        json=json,
    )


add_run(app)
add_repro(app)
add_selftest(app)
add_doctor(app)


def main() -> None:
    """Entry point of the `day0` command."""
    if complete_bash.asked():
        complete_bash.answer(app)
    app()

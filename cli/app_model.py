"""`day0 trace`, `fit` and `export-inputs`, which begin with a model; signatures only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from day0.cli import complete
from day0.cli.options import DEFAULT_RUN, Device, Force, Json, Run, Set, call

__all__ = ["add_fit", "add_trace"]


def add_trace(app: typer.Typer) -> None:
    """Add `trace` to the program."""
    app.command("trace")(_trace)


def add_fit(app: typer.Typer) -> None:
    """Add `export-inputs` and `fit` to the program."""
    app.command("export-inputs")(_export_inputs)
    app.command("fit")(_fit)


def _trace(
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


def _export_inputs(
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


def _fit(
    model: Annotated[
        str | None,
        typer.Argument(
            help="toy, hf:<model_type>, hf:<folder>, py:<module>:<factory>, or a described model.",
            autocompletion=complete.models,
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="Run folder, for its model; the record goes there.", metavar="DIR")
    ] = None,
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
        run=run,
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

"""`day0 ops …`: signatures; what they do stands in `ops.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from day0.cli import complete
from day0.cli.options import DEFAULT_RUN, Json, Run, With, Without, call

__all__ = ["ops_app"]

ops_app = typer.Typer(help="Operators and their implementations.", no_args_is_help=True, rich_markup_mode=None)


@ops_app.command("list")
def ops_list(
    name: Annotated[str | None, typer.Argument(help="Only operators whose name holds this text.")] = None,
    with_: With = None,
    without: Without = None,
    namespace: Annotated[
        str | None, typer.Option(help="Only implementations that it sees: its own and its parents', as they are tried.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Only implementations that may run on this device profile.", metavar="NAME")
    ] = None,
    json: Json = False,
) -> None:
    """List operators with contract version and implementations: namespace, kind, devices, who brought them.

    A wide terminal, and --json, also say whose code each operator was compared with.

    Example: day0 ops list norm --namespace kimi/k3.1 --device sim
    """
    call(
        "ops_list",
        file="ops",
        name=name,
        load=with_ or [],
        without=without or [],
        namespace=namespace,
        device=device,
        json=json,
    )


@ops_app.command("show")
def ops_show(
    name: Annotated[
        str,
        typer.Argument(help="Operator, such as day0::topk_tokens or aten::silu.", autocompletion=complete.operators),
    ],
    with_: With = None,
    without: Without = None,
    json: Json = False,
) -> None:
    """Show the contract of an operator, and its implementations: what each takes, where it stands, its hash.

    Example: day0 ops show day0::rms_norm
    """
    call("ops_show", file="ops", name=name, load=with_ or [], without=without or [], json=json)


@ops_app.command("verify")
def ops_verify(
    name: Annotated[
        str | None,
        typer.Argument(help="Operator, such as day0::topk_tokens; else all.", autocompletion=complete.operators),
    ] = None,
    json: Json = False,
) -> None:
    """Compare references with other people's code, as far as it is installed; exit code 1 if one differs.

    Example: day0 ops verify day0::rms_norm
    """
    call("ops_verify", file="ops", name=name, json=json)


@ops_app.command("export")
def ops_export(
    lock: Annotated[Path, typer.Argument(help="Run folder or ops.lock.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the wheel goes.")],
    to: Annotated[str, typer.Option("--to", help="Engine: vllm or sglang.")],
    with_: With = None,
    without: Without = None,
    skip: Annotated[list[str] | None, typer.Option(help="Leave an operator to the engine.", metavar="OP")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Model type or architecture to serve; else the traced one. '*' is every one.", metavar="NAME"
        ),
    ] = None,
    receipts: Annotated[str | None, typer.Option(help="Where the engine's processes write.", metavar="DIR")] = None,
    python: Annotated[
        Path | None, typer.Option(help="The engine's python: targets are looked up there.", metavar="PY")
    ] = None,
    allow_unverified: Annotated[bool, typer.Option("--allow-unverified", help="Take what no report verified.")] = False,
    allow_reference: Annotated[bool, typer.Option("--allow-reference", help="Take references too.")] = False,
    json: Json = False,
) -> None:
    """Make a plugin of a lock for an inference engine: a wheel that carries lock, adapter and your own files.

    Example: day0 ops export --to vllm runs/k3 dist --python /opt/vllm/bin/python
    """
    call(
        "ops_export",
        file="export",
        to=to,
        lock=lock,
        folder=folder,
        load=with_ or [],
        without=without or [],
        skip=skip or [],
        models=model or [],
        receipts=receipts,
        python=python,
        allow_unverified=allow_unverified,
        allow_reference=allow_reference,
        json=json,
    )


@ops_app.command("receipts")
def ops_receipts(
    lock: Annotated[Path, typer.Argument(help="Run folder, ops.lock, or the wheel made of it.")],
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="Receipts; a wheel says where.")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Operator left to the engine.", metavar="OP")] = None,
    all_runs: Annotated[bool, typer.Option("--all-runs", help="Count earlier runs too.")] = False,
    allow_partly: Annotated[
        bool, typer.Option("--allow-partly", help="Pass where the engine's own code ran too.")
    ] = False,
    json: Json = False,
) -> None:
    """Say which locked implementations ran in an engine's processes; exit code 1 if one did not, or not everywhere.

    Example: day0 ops receipts dist/day0_vllm_base-0.1.0+4f1d2c3b5a69-py3-none-any.whl
    """
    call(
        "ops_receipts",
        file="export",
        lock=lock,
        folder=folder,
        skip=skip or [],
        all_runs=all_runs,
        allow_partly=allow_partly,
        json=json,
    )


@ops_app.command("new")
def ops_new(
    name: Annotated[str, typer.Argument(help="Name of the operator or of the kernel, such as scaled_norm.")],
    dir_: Annotated[Path, typer.Option("--dir", help="Checkout of day0, or any folder.", metavar="DIR")] = Path(),
    kind: Annotated[str | None, typer.Option(help="operator (with a kernel) or kernel.", metavar="KIND")] = None,
    for_: Annotated[
        str | None,
        typer.Option(
            "--for", help="Write a kernel of this operator.", metavar="OPERATOR", autocompletion=complete.operators
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write an operator with a kernel and tests, or a kernel of an operator that exists; all of it runs at once.

    In a checkout of day0 the files go to reference_ops/, kernels/torch/ and tests/, elsewhere into a package of its own
    that day0 finds by its entry point. Nothing is overwritten.

    Example: day0 ops new scaled_norm

    A kernel: day0 ops new fast_norm --for day0::rms_norm
    """
    call("ops_new", file="ops_new", name=name, folder=dir_, kind=kind, operator=for_, json=json)


@ops_app.command("diff")
def ops_diff(
    old: Annotated[Path, typer.Argument(help="Run folder or ops.lock, as it was; or a contract.")],
    new: Annotated[Path | None, typer.Argument(help="The other; without it, what is installed now.")] = None,
    with_: With = None,
    without: Without = None,
    json: Json = False,
) -> None:
    """Say what two locks choose otherwise, and why; exit code 1 if anything differs.

    With one lock: whether what it chose is still there and unchanged. What would be chosen now instead is for
    `day0 register --check` to say. Two files of `day0 ops show OPERATOR --json` are compared as contracts.

    Example: day0 ops diff runs/before runs/after

    Is what was locked still there? day0 ops diff runs/v32/ops.lock --with my_kernels.py
    """
    call("ops_diff", file="ops_diff", old=old, new=new, load=with_ or [], without=without or [], json=json)


@ops_app.command("explain")
def ops_explain(
    name: Annotated[
        str | None, typer.Argument(help="Operator, such as aten::topk; else all.", autocompletion=complete.operators)
    ] = None,
    run: Run = DEFAULT_RUN,
    json: Json = False,
) -> None:
    """Say why the lock of a run holds what it holds: every candidate in order, with what ruled it out.

    Example: day0 ops explain aten::topk --run runs/v32
    """
    call("ops_explain", file="explain", name=name, run=run, json=json)

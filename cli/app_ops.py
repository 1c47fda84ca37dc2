"""`day0 ops …`: signatures; what they do stands in `ops.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from day0.cli.options import Json, With, call

__all__ = ["ops_app"]

ops_app = typer.Typer(help="Operators and their implementations.", no_args_is_help=True, rich_markup_mode=None)


@ops_app.command("list")
def ops_list(with_: With = None, json: Json = False) -> None:
    """List operators with contract version, implementations and whose code they were compared with."""
    call("ops_list", file="ops", load=with_ or [], json=json)


@ops_app.command("show")
def ops_show(
    name: Annotated[str, typer.Argument(help="Operator, such as day0::topk_tokens.")],
    with_: With = None,
    json: Json = False,
) -> None:
    """Show the contract of an operator: mathematics, attributes, tolerance, samples, comparisons, implementations.

    Example: day0 ops show day0::rms_norm
    """
    call("ops_show", file="ops", name=name, load=with_ or [], json=json)


@ops_app.command("verify")
def ops_verify(
    name: Annotated[str | None, typer.Argument(help="Operator, such as day0::topk_tokens; else all.")] = None,
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

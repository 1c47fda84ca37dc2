"""`day0 ops …`: signatures; what they do stands in `ops.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from day0.cli.options import DEFAULT_RUN, Json, Run, With, call

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


@ops_app.command("explain")
def ops_explain(
    name: Annotated[str | None, typer.Argument(help="Operator, such as aten::topk; else all.")] = None,
    run: Run = DEFAULT_RUN,
    json: Json = False,
) -> None:
    """Say why the lock of a run holds what it holds: every candidate in order, with what ruled it out.

    Example: day0 ops explain aten::topk --run runs/v32
    """
    call("ops_explain", file="explain", name=name, run=run, json=json)

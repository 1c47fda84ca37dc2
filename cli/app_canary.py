"""`day0 canary` and what stands beside it; signatures only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from day0.cli.app_endpoint import add_endpoint
from day0.cli.canary_ask import CanaryAsk
from day0.cli.options import DEFAULT_RUN, AllowUnverified, Device, Force, Frozen, Json, Locked, Plant, Run, Set, call

__all__ = ["canary_app"]

canary_app = typer.Typer(rich_markup_mode=None)
add_endpoint(canary_app)

# `day0 canary --endpoint URL` is how `day0 canary endpoint URL` was called first; its options still work.
Old = typer.Option(hidden=True)
OldKey = typer.Option("--against-api-key-file", hidden=True)
OldCount = typer.Option(min=1, max=1024, hidden=True)
OldSeconds = typer.Option(min=0.1, max=86400, hidden=True)
OldTries = typer.Option(min=0, max=20, hidden=True)


@canary_app.callback(invoke_without_command=True)
def canary(
    context: typer.Context,
    run: Run = DEFAULT_RUN,
    allow_unverified: AllowUnverified = False,
    locked: Locked = False,
    frozen: Frozen = False,
    plant: Plant = None,
    force: Force = False,
    json: Json = False,
    stage: Annotated[
        list[str] | None, typer.Option("--stage", help="Only this stage; repeat it.", metavar="NAME")
    ] = None,
    first: Annotated[str, typer.Option("--from", help="This stage and those after it.", metavar="NAME")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last stage that passed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and why, and run nothing.")] = False,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Folder with passes of the reference, from another run.",
            metavar="DIR",
        ),
    ] = None,
    endpoint: Annotated[str | None, Old] = None,
    model: Annotated[str, Old] = "",
    against: Annotated[str | None, Old] = None,
    against_model: Annotated[str, Old] = "",
    against_key_file: Annotated[Path | None, OldKey] = None,
    prompts: Annotated[str, Old] = "",
    api: Annotated[str | None, Old] = None,
    concurrency: Annotated[int, OldCount] = 8,
    timeout: Annotated[float, OldSeconds] = 60.0,
    retries: Annotated[int, OldTries] = 2,
    api_key_file: Annotated[Path | None, Old] = None,
    api_key_env: Annotated[str | None, Old] = None,
    served_dtype: Annotated[str, Old] = "",
    gate: Annotated[list[str] | None, Old] = None,
) -> None:
    """Run the model on the device, step by step wider, and stop at the first broken gate.

    Example: day0 canary --run runs/v32

    A running server: day0 canary endpoint http://127.0.0.1:8000 --model v32 --reference path/to/folder
    """
    if context.invoked_subcommand is None and endpoint is not None:
        call(
            "canary_endpoint",
            file="canary_endpoint",
            run=run,
            endpoint=endpoint,
            model=model,
            reference=reference,
            against=against,
            against_model=against_model,
            against_key_file=against_key_file,
            prompts=prompts,
            api=api,
            concurrency=concurrency,
            timeout=timeout,
            retries=retries,
            api_key_file=api_key_file,
            api_key_env=api_key_env,
            served_dtype=served_dtype,
            gates=gate or [],
            json=json,
        )
    meant = {"--model": model, "--against": against, "--prompts": prompts, "--api": api, "--gate": gate}
    if context.invoked_subcommand is None and any(meant.values()):
        call("refuse_alone", file="canary_endpoint", names=[name for name, value in meant.items() if value])
    if context.invoked_subcommand is None:
        call(
            "stage",
            name="canary",
            run=run,
            allow_unverified=allow_unverified,
            locked=locked,
            frozen=frozen,
            plant=plant or [],
            force=force,
            json=json,
            ask=CanaryAsk(only=tuple(stage or ()), first=first, resume=resume, reference=reference),
            dry_run=dry_run,
        )


@canary_app.command("ranks")
def canary_ranks(
    ranks: Annotated[str, typer.Argument(help="Numbers of ranks, as processes here: 2, or 1,2,4.", metavar="N[,N]")],
    run: Run = DEFAULT_RUN,
    model: Annotated[str | None, typer.Option(help="This model instead of the run folder's.", metavar="SOURCE")] = None,
    device: Device = None,
    sets: Set = None,
    dtype: Annotated[str, typer.Option(help="With --model: its dtype.")] = "bfloat16",
    shrink: Annotated[bool, typer.Option("--shrink", help="With --model: make it small.")] = False,
    whole_experts: Annotated[
        bool, typer.Option("--whole-experts", help="Whole experts to each rank, by the model's expert plan.")
    ] = False,
    plant: Plant = None,
    json: Json = False,
) -> None:
    """Cut a model for several ranks by its own plan, and compare what they must agree on.

    Example: day0 canary ranks 2 --run runs/v32 --device cpu
    """
    call(
        "canary_ranks",
        file="canary_ranks",
        ranks=ranks,
        run=run,
        model=model,
        device=device,
        sets=sets or [],
        dtype=dtype,
        shrink=shrink,
        whole_experts=whole_experts,
        plant=plant or [],
        json=json,
    )

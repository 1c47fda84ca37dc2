"""`day0 canary` and what stands beside it; signatures only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from day0.cli.canary_ask import CanaryAsk
from day0.cli.options import DEFAULT_RUN, AllowUnverified, Device, Force, Frozen, Json, Locked, Plant, Run, Set, call

__all__ = ["canary_app"]

Ranks = Annotated[
    str | None,
    typer.Option(
        "--ranks", help="Cut the model for so many ranks, as processes here; several as 1,2,4.", metavar="N[,N]"
    ),
]
RanksModel = Annotated[
    str | None, typer.Option("--model", help="With --ranks: this model instead of the run folder's.", metavar="SOURCE")
]
WholeExperts = Annotated[
    bool, typer.Option("--whole-experts", help="With --ranks: whole experts to each rank, by the model's expert plan.")
]

canary_app = typer.Typer(rich_markup_mode=None)


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
        Path | None, typer.Option(help="Folder with passes of the reference, from another run.", metavar="DIR")
    ] = None,
    ranks: Ranks = None,
    model: RanksModel = None,
    device: Device = None,
    sets: Set = None,
    dtype: Annotated[str, typer.Option(help="With --model: its dtype.")] = "bfloat16",
    shrink: Annotated[bool, typer.Option("--shrink", help="With --model: make it small.")] = False,
    whole_experts: WholeExperts = False,
) -> None:
    """Run the model on the device, step by step wider, and stop at the first broken gate.

    With --ranks it is cut by its own plan for several ranks, and what they must agree on is compared.

    Example: day0 canary --run runs/v32
    """
    if context.invoked_subcommand is None and ranks is not None:
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
    elif model or device or sets or shrink or whole_experts:
        call("refuse_alone", file="canary_ranks")
    elif context.invoked_subcommand is None:
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

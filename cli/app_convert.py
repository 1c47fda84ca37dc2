"""`day0 convert …`: signatures; what they do stands in `convert.py`.

`day0 convert SOURCE RESULT` is short for `day0 convert checkpoint SOURCE RESULT`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from day0.cli.options import Json, Set, call

__all__ = ["convert_app"]

DEFAULT = "checkpoint"


class _WithDefault(TyperGroup):
    """A group whose first command needs no name."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer's own context
        """Put the name in where the first word is none of the commands."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


convert_app = typer.Typer(
    cls=_WithDefault,
    help="Weights in another format: exact where that can be, in constant memory, resumed after a kill.\n\n"
    "`day0 convert SOURCE RESULT --to FORMAT` is short for `day0 convert checkpoint ...`.\n\n"
    "Example: day0 convert gpt-oss-20b gpt-oss-20b-fp8 --to fp8",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@convert_app.command(DEFAULT)
def convert_checkpoint(
    source: Annotated[Path, typer.Argument(help="Folder with config.json and safetensors files.")],
    result: Annotated[Path, typer.Argument(help="New folder; an interrupted conversion goes on in it.")],
    to: Annotated[str, typer.Option("--to", help="Format; `day0 convert formats` lists them.", metavar="FORMAT")],
    scales: Annotated[str, typer.Option(help="Scales of FP8: f32 or e8m0; powers of two both.")] = "f32",
    fnuz: Annotated[bool, typer.Option("--fnuz", help="FP8 as e4m3fnuz, for devices that have that one.")] = False,
    finer: Annotated[
        bool, typer.Option("--finer", help="Take smaller blocks for the weights that need them to be exact.")
    ] = False,
    allow_bounded: Annotated[
        bool, typer.Option("--allow-bounded", help="Let values change within the bound that is reported.")
    ] = False,
    no_subnormal: Annotated[
        bool, typer.Option("--no-subnormal", help="For devices that flush subnormal numbers to zero.")
    ] = False,
    keep_nan: Annotated[bool, typer.Option("--keep-nan", help="Keep NaN (scale byte 255) where it is.")] = False,
    keep_unknown: Annotated[
        bool, typer.Option("--keep-unknown", help="Copy tensors whose names no map knows.")
    ] = False,
    nibbles: Annotated[
        str, typer.Option(help="Order of four-bit codes in the source: low_first or split.")
    ] = "low_first",
    order: Annotated[str, typer.Option(help="The same in the result of --to mxfp4.")] = "low_first",
    architecture: Annotated[str, typer.Option(help="Map of names; else by the config's model_type.")] = "auto",
    transpose: Annotated[
        bool | None,
        typer.Option(
            "--transpose/--no-transpose", help="Stacked experts as [E, in, out]; else as the family has them."
        ),
    ] = None,
    gate_up: Annotated[
        str, typer.Option("--gate-up", help="Rows of fused gate and up: keep, interleaved or concatenated.")
    ] = "keep",
    experts: Annotated[str, typer.Option(help="keep, or split stacked experts into one weight each.")] = "keep",
    only: Annotated[str, typer.Option(help="Convert only weights whose name matches.", metavar="REGEX")] = "",
    skip: Annotated[str, typer.Option(help="Leave weights whose name matches.", metavar="REGEX")] = "",
    jobs: Annotated[int, typer.Option(min=0, max=256, help="Files at one time; 0: one for each core.")] = 0,
    tier: Annotated[str, typer.Option(help="auto, eager, compiled or native; the results are the same.")] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be written and how exactly, and end.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read the result again and compare every value with the source.")
    ] = False,
    json: Json = False,
) -> None:
    """Convert the weights of a checkpoint; exit code 2 if a weight cannot be exact and nothing allows that.

    Example: day0 convert gpt-oss-20b gpt-oss-20b-fp8 --to fp8 --dry-run

    A device without FP8: day0 convert gpt-oss-20b gpt-oss-20b-bf16 --to bf16 --verify

    Rounding allowed: day0 convert deepseek-v3 deepseek-v3-bf16 --to bf16 --allow-bounded
    """
    call(
        "convert",
        file="convert",
        source=source,
        result=result,
        to=to,
        scales=scales,
        fnuz=fnuz,
        finer=finer,
        allow_bounded=allow_bounded,
        no_subnormal=no_subnormal,
        keep_nan=keep_nan,
        keep_unknown=keep_unknown,
        nibbles=nibbles,
        order=order,
        architecture=architecture,
        transpose=transpose,
        gate_up=gate_up,
        experts=experts,
        only=only,
        skip=skip,
        jobs=jobs,
        tier=tier,
        dry_run=dry_run,
        verify=verify,
        json=json,
    )


@convert_app.command("formats")
def convert_formats(json: Json = False) -> None:
    """List formats to read and to write, and how exact each pair is.

    Example: day0 convert formats
    """
    call("formats", file="convert", json=json)


@convert_app.command("record-routing")
def record_routing(
    model: Annotated[str, typer.Argument(help="Model source, such as toy or hf:FOLDER.")],
    result: Annotated[Path, typer.Argument(help="File to write, such as routing.safetensors.")],
    batch: Annotated[int, typer.Option(min=1, max=1 << 12, help="Prompts.")] = 1,
    tokens: Annotated[int, typer.Option(min=1, max=1 << 20, help="Tokens of each prompt.")] = 48,
    new_tokens: Annotated[int, typer.Option("--new-tokens", min=0, max=1 << 16, help="Decoding steps.")] = 64,
    set: Set = None,
    adapt: Annotated[
        list[str] | None,
        typer.Option(help="For hf: models: adapters that make their routers ours, or all.", metavar="NAME"),
    ] = None,
    dtype: Annotated[str, typer.Option(help="What the model computes in.")] = "float32",
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    slots: Annotated[
        int | None, typer.Option(min=0, max=1 << 20, help="Run the toy with a cache of so many, and say what it did.")
    ] = None,
    policy: Annotated[str, typer.Option(help="Of that cache: lru or lrc (least recently converted).")] = "lru",
    split: Annotated[str, typer.Option(help="Of that cache: by layer, or shared.")] = "layer",
    threads: Annotated[int, typer.Option(min=0, max=256, help="Convert beside the computation.")] = 0,
    json: Json = False,
) -> None:
    """Run a model, prefill and decode, and write which experts its tokens chose.

    Example: day0 convert record-routing toy routing.safetensors

    With a cache, measured beside its simulation: day0 convert record-routing toy routing.safetensors --slots 12
    """
    call(
        "record_routing",
        file="expert_cache",
        model=model,
        result=result,
        batch=batch,
        tokens=tokens,
        new_tokens=new_tokens,
        sets=set or [],
        adapt=adapt or [],
        dtype=dtype,
        seed=seed,
        slots=slots,
        policy=policy,
        split=split,
        threads=threads,
        json=json,
    )


@convert_app.command("simulate-cache")
def simulate_cache(
    routing: Annotated[Path, typer.Argument(help="File of `day0 convert record-routing`.")],
    slots: Annotated[
        list[int] | None,
        typer.Option(min=0, max=1 << 20, help="Slots of all layers together; may be given several times."),
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="lru or lrc (least recently converted); both if not given.")
    ] = None,
    split: Annotated[list[str] | None, typer.Option(help="layer or shared; both if not given.")] = None,
    scratch: Annotated[
        int | None, typer.Option(min=1, max=1 << 16, help="Slots that keep nothing; else what a call needs at most.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw hit rates: .svg, .png or .html.", metavar="FILE")] = None,
    json: Json = False,
) -> None:
    """Say what hit rate an expert cache would have on recorded routing, by policy and number of slots.

    Example: day0 convert simulate-cache routing.safetensors --plot cache.svg

    One question: day0 convert simulate-cache routing.safetensors --slots 24 --policy lru --split layer
    """
    call(
        "simulate_cache",
        file="expert_cache",
        routing=routing,
        slots=slots or [],
        policies=policy or [],
        splits=split or [],
        scratch=scratch,
        plot=plot,
        json=json,
    )

"""`day0 convert`: plan, say what it means, do it, compare it."""

from __future__ import annotations

import json as jsonlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from day0.cli import show_convert
from day0.cli.talk import Talk
from day0.errors import Day0Error, ExitCode, near_names

if TYPE_CHECKING:
    from day0.converters.plan import Plan
    from day0.records import ConversionParameters, ConvertReport

__all__ = ["convert", "formats"]

CHOICES = {
    "--scales": ("f32", "e8m0"),
    "--nibbles": ("low_first", "split"),
    "--order": ("low_first", "split"),
    "--gate-up": ("keep", "interleaved", "concatenated"),
    "--experts": ("keep", "split"),
}


def convert(
    *, source: Path, result: Path, jobs: int, tier: str, dry_run: bool, verify: bool, json: bool, **options: object
) -> int:
    """`day0 convert`: exit code 1 where a comparison finds something else than the report says."""
    import torch

    from day0.cli.session import environment
    from day0.codec import encode
    from day0.converters.convert import convert as run
    from day0.converters.folder import open_folder
    from day0.converters.plan import make_plan, refuse_inexact
    from day0.converters.summary import report_of
    from day0.converters.tiers.load import pick_tier

    talk = Talk(as_json=json)
    parameters = _parameters(options)
    jobs = jobs or os.cpu_count() or 1
    chosen = pick_tier(tier)
    # Workers share the cores: threads within an operator would only fight over them.
    torch.set_num_threads(1)
    with talk.busy("reading headers"):
        plan = make_plan(open_folder(source), parameters, jobs=jobs, progress=talk.progress)
    if dry_run:
        report = report_of(plan, done=False)
        show_convert.plan(talk, report, str(result))
        _print(json, encode(report, inputs={"source": report.source}, environment=environment()))
        return _dry_code(plan)
    refuse_inexact(plan)
    with talk.busy("converting"):
        report = run(
            plan,
            result,
            chosen,
            jobs=jobs,
            environment=environment(),
            watch=lambda step: talk.progress(show_convert.speed(step), step.done, step.total),
        )
    show_convert.done(talk, report, str(result), chosen.name)
    code = _verify(talk, plan, result, report, jobs) if verify else ExitCode.OK
    _print(json, encode(report, inputs={"source": report.source}, environment=environment()))
    return int(code)


def _print(as_json: bool, text: str) -> None:
    if as_json:
        print(text, end="")


def _parameters(options: dict[str, object]) -> ConversionParameters:
    from day0.records import ConversionParameters

    for flag, known in CHOICES.items():
        value = str(options[flag.removeprefix("--").replace("-", "_")])
        if value not in known:
            raise Day0Error(
                f"{flag} {value}", "there is no such choice", hint=near_names(value, known) or " or ".join(known)
            )
    return ConversionParameters.model_validate(options)


def _dry_code(plan: Plan) -> int:
    from day0.converters.plan import refuse_inexact

    refuse_inexact(plan)
    return int(ExitCode.OK)


def _verify(talk: Talk, plan: Plan, result: Path, report: ConvertReport, jobs: int) -> ExitCode:
    from day0.converters.verify import verify

    with talk.busy("comparing"):
        found = verify(plan, result, report, jobs=jobs, progress=talk.progress)
    show_convert.checked(talk, found.weights, found.values, found.tensors, found.wrong)
    return ExitCode.GATE_FAILED if found.wrong else ExitCode.OK


def formats(*, json: bool) -> int:
    """`day0 convert formats`."""
    from day0.converters.architectures.load import load_architectures
    from day0.converters.formats.load import load_formats
    from day0.converters.pairs import pairs
    from day0.converters.targets.load import load_targets
    from day0.converters.tiers.load import load_tiers

    talk = Talk(as_json=json)
    found = {
        "formats": {one.name: one.summary for one in load_formats().values()},
        "targets": {one.name: one.summary for one in load_targets().values()},
        "pairs": [{"source": one.source, "target": one.target, "statement": one.statement} for one in pairs()],
        "architectures": {one.name: one.summary for one in load_architectures().values()},
        "tiers": {one.name: one.missing("cpu") or one.summary for one in load_tiers().values()},
    }
    show_convert.formats(talk, found)
    _print(json, jsonlib.dumps(found, indent=1) + "\n")
    return int(ExitCode.OK)

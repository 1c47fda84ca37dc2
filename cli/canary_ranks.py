"""`day0 canary ranks`: the model of a run folder, or another, on several ranks of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from day0.cli import show_ranks
from day0.cli.plans import trace_plan
from day0.cli.rundir import RunFolder, write_atomically
from day0.cli.session import environment
from day0.cli.talk import Talk
from day0.errors import Day0Error, ExitCode
from day0.playbook import ModelPlan, RegisterPlan

__all__ = ["FILE", "canary_ranks", "parse_ranks"]

FILE = "ranks.json"
"""The record, in the run folder."""
JUNIT = "ranks.junit.xml"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    model: ModelPlan
    device: str
    register: RegisterPlan
    folder: RunFolder | None
    """Where the record goes; None for a model that was named here."""


def canary_ranks(
    *,
    ranks: str,
    run: Path,
    model: str | None,
    device: str | None,
    sets: list[str],
    dtype: str,
    shrink: bool,
    whole_experts: bool,
    plant: list[str],
    json: bool,
) -> int:
    """Run, show, write the record. Exit code 1 where a rank is lost, or something is wrong on one."""
    from day0.analyzers.ranks.run import RanksRequest, run_ranks
    from day0.codec import encode
    from day0.devices.profile import load_profile
    from day0.reference_ops.torch_ops import register_operators
    from day0.reports.ranks import render_ranks_junit

    talk, plants, numbers = Talk(as_json=json), tuple(dict.fromkeys(plant)), parse_ranks(ranks)
    asked = _asked(run, model, device, sets, dtype, shrink)
    register_operators()
    profile = load_profile(asked.device)
    request = RanksRequest(
        model=asked.model,
        profile=profile,
        ranks=numbers,
        whole_experts=whole_experts,
        register_=asked.register,
        plants=plants,
    )
    with talk.busy("ranks"):
        report = run_ranks(request, talk.progress)
    planted = {"planted": ", ".join(plants)} if plants else {}
    text = encode(report, inputs={}, environment={**environment(), **planted})
    if asked.folder is not None:
        write_atomically(asked.folder.file(FILE), text)
        write_atomically(asked.folder.file(JUNIT), render_ranks_junit(report))
    show_ranks.report(talk, report)
    if json:
        print(text, end="")
    passed = all(one.status == "pass" for one in report.runs)
    return int(ExitCode.OK if passed else ExitCode.GATE_FAILED)


def parse_ranks(text: str) -> tuple[int, ...]:
    """Read `2`, or several numbers of ranks as `1,2,4`. Raises Day0Error for what is no number."""
    numbers = []
    for part in text.split(","):
        word = part.strip()
        if not word.isdecimal() or len(word) > 6 or not word.isascii():
            raise Day0Error(f"ranks {text}", f"'{word}' is no number of ranks", hint="for example 2 or 1,2,4")
        numbers.append(int(word))
    return tuple(dict.fromkeys(numbers))


def _asked(run: Path, model: str | None, device: str | None, sets: list[str], dtype: str, shrink: bool) -> _Asked:
    if model is not None:
        made = trace_plan(
            model=model,
            sets=sets,
            dtype=dtype,
            mode="auto",
            batch=1,
            shrink=shrink,
            phases=[],
            trust_remote_code=False,
            name="ranks",
        )
        return _Asked(model=made.model, device=device or "cpu", register=RegisterPlan(), folder=None)
    if sets or shrink:
        raise Day0Error("--set" if sets else "--shrink", "it belongs to --model", hint="name the model with --model")
    folder = RunFolder(run)
    plan = folder.read_plan()
    if plan is None:
        hint = f"begin with `day0 trace MODEL --run {run}`, or name a model with --model"
        raise Day0Error(str(run), "there is no trace yet", hint=hint)
    if not (device or plan.device):
        raise Day0Error(str(run), "no device was named yet", hint="add --device cpu; see `day0 device list`")
    return _Asked(model=plan.model, device=device or plan.device, register=plan.register_, folder=folder)

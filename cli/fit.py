"""`day0 fit`: how many cards does this model need, and what takes their memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from day0.cli import show_fit
from day0.cli.plans import parse_set
from day0.cli.rundir import RunFolder, write_atomically
from day0.cli.talk import Talk
from day0.errors import Day0Error, ExitCode, near_names

if TYPE_CHECKING:
    from day0.playbook import ModelPlan

__all__ = ["FILE", "fit"]

FILE = "fit.json"
"""The record, in the run folder."""

GIB = 1 << 30
MIN_MEMORY_GIB = 2**-20
"""One KiB."""
MAX_MEMORY_GIB = 1 << 20
LARGEST_SIZE = 10**9
MOST_LAYERS = 4096
WORKSPACES = ("fp8", "bf16", "none")
CACHE_FORMATS = ("bf16", "fp8")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Card:
    memory: int
    name: str
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """The model, and what is known of it before it is built."""

    plan: ModelPlan
    name: str
    device: str | None
    """Profile of the device; None for cards of a size."""
    format: str = ""
    """In which it is published; empty where its config says."""
    folder: RunFolder | None = None
    """Where the record goes; None for a model that was named here."""


def fit(
    *,
    model: str | None,
    device: str | None,
    memory_gib: float | None,
    format: str,
    kv_format: str,
    index_format: str,
    workspace: str | None,
    context: int,
    batch: int,
    chunk: int,
    layout: str,
    cards: int,
    node: int,
    reserve: float,
    train: bool,
    sets: list[str],
    trust_remote_code: bool,
    json: bool,
    run: Path | None = None,
) -> int:
    """`day0 fit`: exit code 1 where the asked layout, or none that was searched, holds the model.

    With a run folder it is that folder's model, on its device unless another is named, and the record goes there.
    """
    from day0.analyzers.fit.fit import FitRequest, fit_model
    from day0.cli.session import environment
    from day0.codec import encode
    from day0.models.source import open_model
    from day0.reference_ops.torch_ops import register_operators

    talk = Talk(as_json=json)
    asked = _asked(model, run, sets, trust_remote_code)
    card = _card(device or (asked.device if memory_gib is None else None), memory_gib)
    for flag, value, known in (
        ("--kv-format", kv_format, CACHE_FORMATS),
        ("--index-format", index_format, CACHE_FORMATS),
        ("--workspace", workspace or "none", WORKSPACES),
    ):
        _refuse_unknown(flag, value, known)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with talk.busy("fit"):
        register_operators()
        request = FitRequest(
            memory=card.memory,
            device=card.name,
            reserve=reserve,
            format=format or asked.format,
            kv_format=kv_format,
            index_format=index_format,
            workspace=_workspace(workspace, card),
            context=context,
            batch=batch,
            chunk=chunk,
            layout=layout,
            cards=cards,
            node=node,
            train=train,
        )
        report = fit_model(open_model(asked.plan), request, talk.progress)
        report = report.model_copy(update={"model": asked.name})
    text = encode(report, inputs={}, environment=environment())
    if asked.folder is not None:
        write_atomically(asked.folder.file(FILE), text)
    show_fit.report(talk, report)
    if json:
        print(text, end="")
    return int(ExitCode.OK if report.fits else ExitCode.GATE_FAILED)


def _card(device: str | None, memory_gib: float | None) -> _Card:
    from day0.devices.profile import load_profile

    if device is None:
        size = 80.0 if memory_gib is None else memory_gib
        if not MIN_MEMORY_GIB <= size <= MAX_MEMORY_GIB:
            raise Day0Error("--memory-gib", f"{size:g} GiB is no card", hint="for example --memory-gib 80")
        return _Card(memory=int(size * GIB), name=f"cards of {size:g} GiB")
    profile = load_profile(device)
    if memory_gib is not None:
        what = f"{device} has {profile.memory_gib:g} GiB, and --memory-gib says {memory_gib:g}"
        raise Day0Error("--device", what, hint="leave one of them out")
    return _Card(memory=int(profile.memory_gib * GIB), name=profile.name, dtypes=profile.dtypes)


def _refuse_unknown(flag: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        hint = near_names(value, known) or f"use one of: {', '.join(known)}"
        raise Day0Error(f"{flag} {value}", "there is no such format", hint=hint)


def _workspace(asked: str | None, card: _Card) -> str:
    """Return the format into which four-bit experts are converted: none where the device has a four-bit dtype."""
    if asked is not None:
        return "" if asked == "none" else asked
    if any(dtype.startswith("float4") for dtype in card.dtypes):
        return ""
    return "fp8" if not card.dtypes or "float8_e4m3fn" in card.dtypes else "bf16"


def _asked(model: str | None, run: Path | None, sets: list[str], trust_remote_code: bool) -> _Asked:
    """Return what to build: the model that is named, or that of a run folder.

    Raises Day0Error where both are named or neither is, and where the folder has no plan yet.
    """
    if run is not None:
        return _of_folder(RunFolder(run), model, sets)
    if model is None:
        raise Day0Error("day0 fit", "no model was named", hint="name one, or a run folder with --run")
    from day0.models.described.read import read_described
    from day0.playbook import ModelPlan

    changes: dict[str, Any] = dict(parse_set(text) for text in sets)
    for key, value in changes.items():
        _refuse_absurd(key, value)
    if ":" in model or model == "toy":
        plan = ModelPlan(source=model, set=changes, trust_remote_code=trust_remote_code)
        return _Asked(plan=plan, name=model, device=None)
    described = read_described(model)
    for key, value in described.set.items():
        _refuse_absurd(key, value)
    return _Asked(plan=described.plan(changes), name=model, device=None, format=described.format)


def _of_folder(folder: RunFolder, model: str | None, sets: list[str]) -> _Asked:
    if model is not None or sets:
        what = f"{model} was named beside a run folder, which has a model" if model else "it belongs to a named model"
        raise Day0Error(model or "--set", what, hint="leave out --run, or the model and its --set")
    plan = folder.read_plan()
    if plan is None:
        raise Day0Error(
            str(folder.path), "there is no trace yet", hint=f"begin with `day0 trace MODEL --run {folder.path}`"
        )
    for key, value in plan.model.set.items():
        _refuse_absurd(key, value)
    return _Asked(plan=plan.model, name=plan.model.source, device=plan.device or None, folder=folder)


def _refuse_absurd(key: str, value: Any) -> None:
    """Refuse sizes before anything is built of them: a billion layers would be a billion modules."""
    if isinstance(value, bool) or not isinstance(value, int):
        return
    limit = MOST_LAYERS if "layers" in key else LARGEST_SIZE
    if isinstance(value, int) and abs(value) > limit:
        what = f"{value:,} is more than {limit:,}, which no model has"
        raise Day0Error(f"--set {key}", what, hint="check the number of digits")

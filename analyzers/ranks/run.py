"""`day0 canary ranks`: a model on one or several numbers of ranks, with or without planted faults."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from day0.analyzers.canary.gates import Figure
from day0.analyzers.fit.fit import FitRequest, Study, fit_study, study_model
from day0.analyzers.modules.passes import plain_tokens, prompt_length
from day0.analyzers.parallel import cut_model, fake_group
from day0.analyzers.ranks.faults import RANK_FAULTS, find_rank_faults
from day0.analyzers.ranks.judge import judge_run
from day0.analyzers.ranks.launch import launch
from day0.analyzers.ranks.lock import implementations_of, lock_of, words_of
from day0.analyzers.ranks.memory import Predicted, predict_step
from day0.analyzers.ranks.setting import RanksSetting, backend_of
from day0.devices.open import open_torch_device
from day0.devices.profile import DeviceProfile
from day0.errors import Day0Error
from day0.models.source import open_model
from day0.models.spec import ModelSpec
from day0.playbook import ModelPlan, RegisterPlan
from day0.records import RankScale, RanksReport, RanksRun
from day0.reference_ops.signatures import dtype_name

__all__ = ["MOST_RANKS", "RanksRequest", "run_ranks"]

MOST_RANKS = 1024
"""More processes than that no machine has cards for."""
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksRequest:
    """What is asked."""

    model: ModelPlan
    profile: DeviceProfile
    ranks: tuple[int, ...]
    whole_experts: bool = False
    register_: RegisterPlan = field(default_factory=RegisterPlan)
    """Which implementations may stand in for operators of day0 that the device has no kernel for."""
    new_tokens: int = 8
    repeats: int = 3
    prompt_tokens: int = 0
    """Tokens of the prompt; 0: a few, more than the sparse top-k where a golden of so many is affordable."""
    time_only: bool = False
    """Make no golden: times, memory, collectives and what ranks must agree on, of sizes for which one takes too long."""
    plants: tuple[str, ...] = ()
    """Faults, each in a run of its own; an empty text is a run without one."""
    step_s: float = 120.0
    collective_s: float = 60.0


def run_ranks(request: RanksRequest, progress: Progress = lambda _: None) -> RanksReport:
    """Run the model on each number of ranks and hold it against itself as a whole.

    Ranks are processes of this machine. Raises Day0Error before anything is started: a device without collectives or
    with too few cards, a model without a plan for ranks, sizes that do not divide, a fault that nothing could reach.
    """
    spec = open_model(request.model)
    backend = _refuse(request, spec)
    progress(f"cutting {spec.class_name} on meta")
    for ranks in request.ranks:
        _refuse_cut(spec, ranks, whole_experts=request.whole_experts)
    tokens, note = _prompt(spec, request)
    study = study_model(spec, context=tokens, chunk=tokens)
    known = implementations_of(request.register_)
    runs, locks = [], {}
    for asked in _settings(request, tokens):
        progress(f"{asked.ranks} ranks: starting")
        memory = _predicted(spec, asked)
        lock = lock_of(memory.calls, request.profile, request.register_, spec.fingerprint, known)
        setting = asked.model_copy(update={"lock": lock})
        locks[setting.ranks] = lock
        runs += _start(setting, _fit_bytes(study, setting), _figure(memory), progress)
    return RanksReport(
        model=spec.source,
        class_name=spec.class_name,
        overrides={**spec.overrides, **spec.shrunk},
        dtype=dtype_name(spec.dtype),
        seed=request.model.seed,
        device=request.profile.name,
        backend=backend,
        prompt_tokens=tokens,
        new_tokens=request.new_tokens,
        runs=tuple(runs),
        scaling=_scaling(runs),
        notes=tuple(one for one in (note, *words_of(locks), *_unused(spec, request)) if one),
    )


def _refuse(request: RanksRequest, spec: ModelSpec) -> str:
    """Return the backend of collectives, or raise what can be known before anything is built."""
    for ranks in request.ranks:
        if not 1 <= ranks <= MOST_RANKS:
            raise Day0Error(f"ranks {ranks}", "that is no number of ranks", hint=f"give 1 to {MOST_RANKS}")
    device = open_torch_device(request.profile)
    backend = backend_of(device.type)
    if not backend:
        what = f"torch has no collectives for '{device.type}', the device of profile {request.profile.name}"
        raise Day0Error("ranks", what, hint="take --device cpu: then each rank is a process on the CPU, over gloo")
    cards = getattr(getattr(torch, device.type, None), "device_count", lambda: None)()
    if device.type != "cpu" and cards is not None and cards < max(request.ranks):
        what = f"{max(request.ranks)} ranks need as many cards, and there are {cards} here"
        raise Day0Error("ranks", what, hint=f"give {max(cards, 1)}, or take --device cpu")
    _refuse_plants(request, spec)
    if spec.phases or not spec.vocab_size:
        what = "it takes the inputs that its source brings, and ranks are given token ids"
        raise Day0Error(spec.source, what, hint="take a model of transformers, such as hf:qwen3 with --shrink")
    why = plain_tokens(spec, spec.build("meta"))
    if why:
        raise Day0Error(spec.source, f"it cannot be given one token after the other: {why}", hint="take another model")
    return backend


def _refuse_plants(request: RanksRequest, spec: ModelSpec) -> None:
    names = tuple(name for name in request.plants if name)
    faults = find_rank_faults(names)
    if faults and min(request.ranks) < 2:
        raise Day0Error("--plant", "faults are planted in rank 1, and one rank has none", hint="give 2")
    for name, fault in zip(names, faults, strict=True):
        if fault.needs_indexer and spec.sparse_top_k is None:
            what = f"{spec.class_name} has no indexer that selects tokens"
            raise Day0Error(
                f"--plant {name}", what, hint="take a model with one, such as hf:deepseek_v32 with --shrink"
            )


def _refuse_cut(spec: ModelSpec, ranks: int, *, whole_experts: bool) -> None:
    if ranks == 1:
        return
    with fake_group(ranks):
        try:
            cut_model(spec.build("meta"), ranks, spec.source, whole_experts=whole_experts)
        except Day0Error as error:
            hint = "take a number of ranks that divides its sizes, or change them with --set"
            if "plan" in error.what:
                hint = error.hint if "expert" in error.what else "take a model whose config has a base_model_tp_plan"
            raise Day0Error(error.where, error.what, facts=error.facts, hint=hint) from None


def _settings(request: RanksRequest, tokens: int) -> Iterator[RanksSetting]:
    """Yield one setting for each start of processes: faults that a rank survives share one, and one more ends it."""
    plants = request.plants or ("",)
    together = tuple(name for name in plants if not name or not RANK_FAULTS[name].ends)
    ending: list[tuple[str, ...]] = [(name,) for name in plants if name and RANK_FAULTS[name].ends]
    last, *alone = ending or [()]
    for ranks in request.ranks:
        for scenarios in (together + last, *alone):
            yield RanksSetting(
                model=request.model,
                profile=request.profile,
                ranks=ranks,
                whole_experts=request.whole_experts and ranks > 1,
                register_=request.register_,
                prompt_tokens=tokens,
                new_tokens=request.new_tokens,
                repeats=request.repeats,
                time_only=request.time_only,
                scenarios=scenarios,
                step_s=request.step_s,
                collective_s=request.collective_s,
            )


def _prompt(spec: ModelSpec, request: RanksRequest) -> tuple[int, str]:
    """Return how many tokens the prompt has, and a note where that matters. Raises Day0Error for too many."""
    after = request.new_tokens + 2 * request.repeats + 2
    if not request.prompt_tokens:
        return prompt_length(spec, after)
    room = (spec.max_positions or 1 << 30) - after
    if not 1 < request.prompt_tokens <= room:
        what = f"a prompt of {request.prompt_tokens} tokens, and {after} after it, do not fit its positions"
        raise Day0Error(spec.source, what, hint=f"give 2 to {room} tokens")
    return request.prompt_tokens, ""


def _predicted(spec: ModelSpec, setting: RanksSetting) -> Predicted:
    """Run a step of the cut model on meta: the bytes of the fullest rank, and the calls of operators of ours."""
    device = torch.device(setting.profile.torch_device)
    return predict_step(spec, setting.ranks, setting.prompt_tokens, device, whole_experts=setting.whole_experts)


def _figure(memory: Predicted) -> Figure:
    return Figure(None if memory.bytes is None else float(memory.bytes), why=memory.why)


def _start(setting: RanksSetting, fit_bytes: Figure, memory: Figure, progress: Progress) -> list[RanksRun]:
    with tempfile.TemporaryDirectory(prefix=f"day0-ranks-{os.getpid()}-") as name:
        folder = Path(name)
        ends = launch(setting, folder, progress)
        return [judge_run(setting, place, ends, folder, fit_bytes, memory) for place in range(len(setting.scenarios))]


def _fit_bytes(study: Study, setting: RanksSetting) -> Figure:
    """Return the bytes of weights that `day0 fit` predicts for a card of a layout of this many ranks."""
    tokens = study.measured.chunk
    layout = f"tp={setting.ranks}"
    request = FitRequest(memory=1 << 50, device="any", layout=layout, context=tokens, chunk=tokens)
    try:
        card = fit_study(study, request).card
    except Day0Error as error:
        return Figure(None, why=f"day0 fit: {error}")
    return Figure(float(sum(card.weights.values()))) if card is not None else Figure(None, why="day0 fit has no layout")


def _scaling(runs: list[RanksRun]) -> tuple[RankScale, ...]:
    """Return the table over the numbers of ranks, from runs without a fault that ended."""
    done = sorted((one for one in runs if not one.planted and "decode_s" in one.metrics), key=lambda one: one.ranks)
    return tuple(
        RankScale(
            ranks=one.ranks,
            prefill_s=one.metrics["prefill_s"],
            decode_s=one.metrics["decode_s"],
            prefill_efficiency=_efficiency(done[0], one, "prefill_s"),
            decode_efficiency=_efficiency(done[0], one, "decode_s"),
            collective_share=one.metrics["decode_collective_share"],
            weight_bytes=int(one.metrics["weight_bytes"]),
        )
        for one in done
    )


def _efficiency(fewest: RanksRun, here: RanksRun, name: str) -> float:
    more = here.ranks / fewest.ranks
    return fewest.metrics[name] / (here.metrics[name] * more)


def _unused(spec: ModelSpec, request: RanksRequest) -> tuple[str, ...]:
    """Say what of the model no rank does, and what was not compared."""
    images = "its vision branch was not run" if spec.image_inputs is not None else ""
    only = "times only: no golden was made, and numbers were compared between ranks alone" if request.time_only else ""
    return images, only

"""Run the phases of a workload in one mode, under a recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from day0.analyzers.recorder import Recorder, watch_modules
from day0.errors import USER_ERRORS, Day0Error
from day0.models.caches import CacheWay, cache_ways
from day0.models.driver import CallStyle, StepOutput, step, style_of
from day0.models.fake import FakeValues, known
from day0.models.missing import missing_field_hint
from day0.models.spec import ModelSpec
from day0.models.workload import Phase, token_ids
from day0.records import CallEntry, TraceEntry

__all__ = ["Attempt", "attempt"]

Mode = Literal["meta", "fake", "real"]

OUR_FOLDERS = (
    str(Path(__file__).parent),
    str(Path(__file__).resolve().parent),
    str(Path(step.__code__.co_filename).parent),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What one run in one mode saw."""

    entries: tuple[TraceEntry, ...]
    functions: tuple[CallEntry, ...]
    calls: dict[str, int]
    """Operator calls by phase; 0 for one that the model does not have."""
    notes: dict[str, str]
    """What there is to say of a phase beyond why it was asked for."""
    parameters: int
    parameter_bytes: int
    assumed: dict[str, int] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class _Run:
    """One run: the model, how it is called, and what is written down."""

    spec: ModelSpec
    model: nn.Module
    mode: Mode
    style: CallStyle
    way: CacheWay
    recorder: Recorder
    calls: dict[str, int] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    filled: dict[tuple[int, int], StepOutput] = field(default_factory=dict)
    """What phases left in the cache, by batch and number of tokens."""

    @property
    def device(self) -> str:
        """Where tensors are made; in mode fake the values themselves decide."""
        return "meta" if self.mode == "meta" else "cpu"


class _CacheTrouble(Exception):
    """The cache that the model makes for itself does not work; another may."""

    def __init__(self, error: Day0Error) -> None:
        super().__init__(str(error))
        self.error = error


def attempt(spec: ModelSpec, phases: tuple[Phase, ...], mode: Mode, progress: Callable[[str], None]) -> Attempt:
    """Build the model and run the phases in one mode.

    A model whose own cache fails is tried with plain ones, and at last without.
    Raises Day0Error with module path, source line and reason when the model stops.
    """
    own, *others = cache_ways()
    try:
        return _attempt(spec, phases, mode, own, progress)
    except _CacheTrouble as error:
        trouble = error.error
    for way in others:
        try:
            return _attempt(spec, phases, mode, way, progress)
        except (_CacheTrouble, Day0Error):
            continue
    raise trouble from trouble.__cause__


def _attempt(
    spec: ModelSpec, phases: tuple[Phase, ...], mode: Mode, way: CacheWay, progress: Callable[[str], None]
) -> Attempt:
    fake = FakeValues() if mode == "fake" else None
    with fake or nullcontext():
        progress(f"building {spec.class_name} on {'meta' if mode != 'real' else 'cpu'}")
        model = spec.build("meta" if mode == "meta" else "cpu")
        recorder = Recorder(stats=mode == "real" and spec.trained)
        run = _Run(spec=spec, model=model, mode=mode, style=style_of(model), way=way, recorder=recorder)
        with watch_modules(model, run.recorder):
            for phase in phases:
                progress(f"tracing {phase.name}: {phase.tokens} tokens after {phase.context}")
                _run_phase(run, phase)
    parameters = list(model.parameters())
    return Attempt(
        entries=run.recorder.entries(),
        functions=run.recorder.call_entries(),
        calls=run.calls,
        notes=run.notes,
        parameters=sum(value.numel() for value in parameters),
        parameter_bytes=sum(value.numel() * value.element_size() for value in (*parameters, *model.buffers())),
        assumed=dict(fake.assumed) if fake else {},
    )


def _run_phase(run: _Run, phase: Phase) -> None:
    recorder = run.recorder
    recorder.phase, before = phase.name, recorder.calls
    with _explained(run, phase):
        if phase.prepare is not None:
            call = phase.prepare(run.model, run.device)
            recorder.recording = True
            with recorder:
                call()
        else:
            _run_tokens(run, phase)
    run.calls[phase.name] = recorder.calls - before


def _run_tokens(run: _Run, phase: Phase) -> None:
    recorder = run.recorder
    ids_BS = token_ids(run.spec, phase.batch, phase.context + phase.tokens, seed=0)
    inputs: dict[str, Any] = {}
    if phase.images:
        ids_BS, inputs = _with_images(run, phase, ids_BS)
    ids_BS = _placed(run, ids_BS)
    new_BS = ids_BS if run.style.all_tokens else ids_BS[:, phase.context :].contiguous()
    with recorder:
        earlier = _filled_cache(run, phase, ids_BS)
        if phase.context and (earlier is None or earlier.cache is None):
            run.notes[phase.name] = _no_cache(run)
        else:
            recorder.recording = True
            run.filled[phase.batch, phase.context + phase.tokens] = _step(run, new_BS, earlier, inputs)


def _placed(run: _Run, value: torch.Tensor) -> torch.Tensor:
    """Move a tensor to where the run takes place: on meta it loses its values, in mode fake whole numbers keep them."""
    if run.mode == "fake":
        return known(value)
    return value.to(run.device)


def _with_images(run: _Run, phase: Phase, ids_BS: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return token ids (on the CPU) and inputs for them; works out the image's form by trying, unrecorded."""
    if run.spec.image_inputs is None:
        raise ValueError(f"{run.spec.class_name} has no vision branch that day0 knows how to call")
    made = run.spec.image_inputs(run.model, ids_BS, lambda value: _placed(run, value))
    run.notes[phase.name] = f"{phase.reason}: {made.text}"
    return made.ids_BS, dict(made.arguments)


def _filled_cache(run: _Run, phase: Phase, ids_BS: torch.Tensor) -> StepOutput | None:
    """Return what the tokens before the phase left: from the phase that just ran them, else run unrecorded."""
    if not phase.context or not run.way.use_cache:
        return None
    kept = run.filled.pop((phase.batch, phase.context), None)  # once: the next call writes into it
    if kept is not None:
        return kept
    run.recorder.recording = False
    return _step(run, ids_BS[:, : phase.context].contiguous(), None, {})


def _step(run: _Run, ids_BS: torch.Tensor, earlier: StepOutput | None, inputs: dict[str, Any]) -> StepOutput:
    cache = earlier.cache if earlier is not None else run.way.make()
    return step(run.model, ids_BS, cache, style=run.style, earlier=earlier, use_cache=run.way.use_cache, inputs=inputs)


def _no_cache(run: _Run) -> str:
    name, config = run.spec.class_name, getattr(run.model, "config", None)
    if not run.style.takes_ids:
        return f"not there: {name} reads the states of its main model and keeps none of its own"
    if run.style.cache_name is None:
        return f"not there: {name} keeps nothing between calls, each call gets the whole text"
    if not run.way.use_cache:
        return f"not there: the cache that transformers makes for {name} refuses this config ({run.way.why})"
    if getattr(config, "is_decoder", None) is False:
        return f"not there: with is_decoder=false {name} returns no cache; --set is_decoder=true traces it"
    return f"not there: {name} returns no cache"


@contextmanager
def _explained(run: _Run, phase: Phase) -> Iterator[None]:
    """Turn what a model raises into module path, source line and reason."""
    try:
        yield
    except Day0Error:
        raise
    except USER_ERRORS as error:
        explained = _failure(run.spec, phase, run.recorder, run.mode, error)
        if not phase.images and _from_cache(error) and run.style.cache_name is not None and run.way.use_cache:
            explained.__cause__ = error
            raise _CacheTrouble(explained) from error
        raise explained from error
    finally:
        run.recorder.modules.clear()


def _failure(spec: ModelSpec, phase: Phase, recorder: Recorder, mode: Mode, error: BaseException) -> Day0Error:
    """Say where a model stopped and why."""
    path, kind = recorder.last_module
    first = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
    return Day0Error(
        f"{spec.source}, phase {phase.name}, {path or 'model'} ({kind or spec.class_name})",
        f"cannot be traced {_PLACES[mode]}: {_short(_named(error, first))}",
        facts=(f"raised by {_line_of(error)}",),
        hint=_next_step(spec, mode, error),
    )


_PLACES = {"meta": "on meta", "fake": "without values", "real": "on cpu"}


def _short(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[:most].rpartition(' ')[0]} …"


def _named(error: BaseException, first: str) -> str:
    # A KeyError's text is the key alone, and reads like nothing.
    return f"{type(error).__name__}: {first}" if isinstance(error, (LookupError, AssertionError)) else first


def _next_step(spec: ModelSpec, mode: Mode, error: BaseException) -> str:
    text = str(error)
    if "expected scalar type" in text or "same dtype" in text or ("dtype" in text and "float" in text.lower()):
        return "the model mixes dtypes in its own code: try --dtype float32"
    if missing := missing_field_hint(error):
        return missing
    if mode != "real":
        return "try the other modes, or change the config with --set"
    return "look at that line: the config may lack a field that it needs, give it with --set"


def _from_cache(error: BaseException) -> bool:
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.endswith("cache_utils.py"):
            return True
        traceback = traceback.tb_next
    return False


def _line_of(error: BaseException) -> str:
    """Return the model's own line, and where it is not the same the line in the library below that raised."""
    traceback = error.__traceback__
    place = deepest = ""
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if "/torch/" not in name and not name.startswith(OUR_FOLDERS):
            deepest = f"{'/'.join(name.split('/')[-3:])}:{traceback.tb_lineno}"
            if "/site-packages/" not in name or "/models/" in name:
                place = deepest
        traceback = traceback.tb_next
    return f"{place} (in {deepest})" if place and place != deepest else deepest

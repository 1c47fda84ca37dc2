"""Stage 1: which operators a model calls, with which shapes, in which phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from day0.analyzers.recorder import Recorder, watch_modules
from day0.errors import Day0Error
from day0.models.driver import step
from day0.models.spec import ModelSpec
from day0.models.workload import Phase, token_ids
from day0.records import ModelInfo, PhaseInfo, Trace
from day0.reference_ops.signatures import dtype_name

__all__ = ["MAX_REAL_BYTES", "trace_model"]

Mode = Literal["meta", "real"]

MAX_REAL_BYTES = 8 << 30
"""A model of more bytes is not given real weights unasked: it would fill the machine."""

OUR_FOLDERS = (str(Path(__file__).parent), str(Path(__file__).resolve().parent))

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Attempt:
    recorder: Recorder
    calls: dict[str, int]
    model: nn.Module


def trace_model(
    spec: ModelSpec, phases: tuple[Phase, ...], *, mode: str = "auto", progress: Progress = lambda _: None
) -> Trace:
    """Run every phase once and record its operator calls.

    `meta` needs neither weights nor memory; `real` runs on the CPU with the model's weights and also records the
    ranges of integer inputs; `auto` tries meta first and says why it went on.
    Raises Day0Error when no mode works: module path, source line and reason.
    """
    if mode != "auto":
        attempt = _run(spec, phases, _mode(mode), progress)
        return _trace(spec, phases, attempt, _mode(mode), "asked for")
    try:
        return _trace(spec, phases, _run(spec, phases, "meta", progress), "meta", "auto: meta works and costs least")
    except Day0Error as error:
        reason = f"auto: meta stopped at {error.where}: {error.what}"
        size = _model_bytes(spec)
        if size > MAX_REAL_BYTES:
            raise Day0Error(
                error.where,
                error.what,
                facts=(*error.facts, f"real weights would take {size / 2**30:.1f} GiB, too much to try unasked"),
                hint="shrink the model with --set (fewer layers, smaller sizes), or force --mode real",
            ) from error
    return _trace(spec, phases, _run(spec, phases, "real", progress), "real", reason)


def _mode(text: str) -> Mode:
    if text == "meta":
        return "meta"
    if text == "real":
        return "real"
    raise Day0Error("--mode", f"'{text}' is not a mode", hint="use auto, meta or real")


def _run(spec: ModelSpec, phases: tuple[Phase, ...], mode: Mode, progress: Progress) -> _Attempt:
    device = "meta" if mode == "meta" else "cpu"
    progress(f"building {spec.class_name} on {device}")
    model = spec.build(device)
    recorder = Recorder(stats=mode == "real" and spec.trained)
    calls: dict[str, int] = {}
    with watch_modules(model, recorder):
        for phase in phases:
            progress(f"tracing {phase.name}: {phase.tokens} tokens after {phase.context}")
            recorder.phase = phase.name
            before = recorder.calls
            _run_phase(spec, model, phase, recorder, device)
            calls[phase.name] = recorder.calls - before
    return _Attempt(recorder=recorder, calls=calls, model=model)


def _run_phase(spec: ModelSpec, model: nn.Module, phase: Phase, recorder: Recorder, device: str) -> None:
    try:
        if phase.prepare is not None:
            call = phase.prepare(model, device)
            with recorder:
                call()
            return
        ids_BS = token_ids(spec, phase.batch, phase.context + phase.tokens, seed=0).to(device)
        cache = None
        with recorder:
            if phase.context:
                recorder.recording = False
                cache = step(model, ids_BS[:, : phase.context], None).cache
            recorder.recording = True
            step(model, ids_BS[:, phase.context :].contiguous(), cache)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise _explain(spec, phase, recorder, device, error) from error
    finally:
        recorder.modules.clear()


def _explain(spec: ModelSpec, phase: Phase, recorder: Recorder, device: str, error: Exception) -> Day0Error:
    path, kind = recorder.last_module
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return Day0Error(
        f"{spec.source}, phase {phase.name}, {path or 'model'} ({kind or spec.class_name})",
        f"cannot be traced on {device}: {first[:200]}",
        facts=(f"raised by {_line_of(error)}",),
        hint="try --mode real with a shrunken config, for example --set num_hidden_layers=2",
    )


def _line_of(error: BaseException) -> str:
    traceback = error.__traceback__
    place = ""
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if "/torch/" not in name and not name.startswith(OUR_FOLDERS):
            place = f"{'/'.join(name.split('/')[-3:])}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def _model_bytes(spec: ModelSpec) -> int:
    model = spec.build("meta")
    return sum(value.numel() * value.element_size() for value in (*model.parameters(), *model.buffers()))


def _trace(spec: ModelSpec, phases: tuple[Phase, ...], attempt: _Attempt, mode: Mode, reason: str) -> Trace:
    parameters = list(attempt.model.parameters())
    weights = (*parameters, *attempt.model.buffers())
    return Trace(
        model=ModelInfo(
            source=spec.source,
            overrides=spec.overrides,
            dtype=dtype_name(spec.dtype),
            class_name=spec.class_name,
            parameters=sum(value.numel() for value in parameters),
            parameter_bytes=sum(value.numel() * value.element_size() for value in weights),
            weights=spec.weights() if mode == "real" else "",
            fingerprint=spec.fingerprint,
        ),
        mode=mode,
        mode_reason=reason,
        device="meta" if mode == "meta" else "cpu",
        phases=tuple(
            PhaseInfo(
                name=phase.name,
                batch=phase.batch,
                tokens=phase.tokens,
                context=phase.context,
                calls=attempt.calls[phase.name],
                reason=phase.reason,
            )
            for phase in phases
        ),
        entries=attempt.recorder.entries(),
        calls=attempt.recorder.call_entries(),
    )

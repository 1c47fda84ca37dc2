"""Stage 1: which operators a model calls, with which shapes, in which phase."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Literal

from day0.analyzers.attempt import Attempt, attempt
from day0.analyzers.merging import merge_calls, merge_entries
from day0.errors import Day0Error
from day0.models.spec import ModelSpec
from day0.models.workload import Phase
from day0.records import ModelInfo, PhaseInfo, Trace
from day0.reference_ops.signatures import dtype_name

__all__ = ["MAX_REAL_BYTES", "trace_model"]

Mode = Literal["meta", "fake", "real"]
MODES: tuple[Mode, ...] = ("meta", "fake", "real")

MAX_REAL_BYTES = 8 << 30
"""A model of more bytes is not given real weights unasked: it would fill the machine."""

Progress = Callable[[str], None]


def trace_model(
    spec: ModelSpec, phases: tuple[Phase, ...], *, mode: str = "auto", progress: Progress = lambda _: None
) -> Trace:
    """Run every phase once and record its operator calls.

    `meta` needs neither weights nor memory; `fake` neither, and goes on where a model asks for values; `real` runs on
    the CPU with the model's weights and also records the ranges of integer inputs; `auto` tries them in this order,
    at last with a shrunken model, and says why it went on. A phase with images that no mode can run does not take the
    others with it, unless it was asked for: its record says what stopped it.
    Raises Day0Error when no mode works: module path, source line and reason.
    """
    text = tuple(phase for phase in phases if not phase.images)
    if not text:
        return _trace(spec, phases, _climb(spec, phases, mode, progress))
    done = _climb(spec, text, mode, progress)
    images = tuple(phase for phase in phases if phase.images)
    return _trace(spec, phases, done, *(_images(spec, phase, mode, done, progress) for phase in images))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Done:
    """The rung that worked, or why none did."""

    mode: Mode
    reason: str
    spec: ModelSpec
    attempt: Attempt


def _images(spec: ModelSpec, phase: Phase, mode: str, text: _Done, progress: Progress) -> _Done | str:
    try:
        # Text that only runs for real, or in a small size, has images that do too.
        first = text.mode if mode == "auto" and not text.spec.shrunk else mode
        return _climb(text.spec, (phase,), mode, progress, first=first)
    except Day0Error as error:
        if phase.reason == "asked for":
            raise
        return f"cannot be traced: {error.where}: {error.what}"


def _climb(spec: ModelSpec, phases: tuple[Phase, ...], mode: str, progress: Progress, *, first: str = "meta") -> _Done:
    """Try one mode after the other, cheapest first, until one works."""
    if mode != "auto":
        chosen = _mode(mode)
        return _Done(mode=chosen, reason="asked for", spec=spec, attempt=attempt(spec, phases, chosen, progress))
    spec.build("meta")  # a model that cannot be built is no matter of modes
    stops: list[tuple[str, Day0Error]] = []
    for name, rung, make in _rungs(spec):
        if MODES.index(rung) < MODES.index(_mode(first if first != "auto" else "meta")):
            continue
        if rung == "real" and _not_about_values(stops):
            break
        try:
            built = make()
            return _Done(
                mode=rung, reason=_reason(name, stops), spec=built, attempt=attempt(built, phases, rung, progress)
            )
        except Day0Error as error:
            stops.append((name, error))
    raise _all_failed(stops)


def _not_about_values(stops: list[tuple[str, Day0Error]]) -> bool:
    """True where the model stopped twice at one line for one reason that is not meta's: real values change nothing."""
    if len(stops) < 2:
        return False
    reasons = {(error.facts, error.what.partition(": ")[2]) for _, error in stops}
    return len(reasons) == 1 and "meta" not in stops[0][1].what.partition(": ")[2].lower()


def _rungs(spec: ModelSpec) -> tuple[tuple[str, Mode, Callable[[], ModelSpec]], ...]:
    rungs: list[tuple[str, Mode, Callable[[], ModelSpec]]] = [
        ("meta", "meta", lambda: spec),
        ("fake", "fake", lambda: spec),
        ("real", "real", lambda: _small_enough(spec)),
    ]
    if spec.shrink is not None and not spec.shrunk:
        rungs.append(("a shrunken model", "real", spec.shrink))
    return tuple(rungs)


def _small_enough(spec: ModelSpec) -> ModelSpec:
    size = _model_bytes(spec)
    if size > MAX_REAL_BYTES:
        what = f"its weights would take {size / 2**30:.1f} GiB, too much to try unasked"
        raise Day0Error(spec.source, what, hint="force it with --mode real, or make it smaller with --shrink")
    return spec


def _reason(name: str, stops: list[tuple[str, Day0Error]]) -> str:
    if not stops:
        return f"auto: {name} works and costs least"
    stopped = "; ".join(f"{before} stopped at {error.where}: {error.what}" for before, error in stops)
    return f"auto: {stopped}; {name} works"


def _all_failed(stops: list[tuple[str, Day0Error]]) -> Day0Error:
    """Return the failure of the last mode in which the model ran, with what the others met.

    meta stops at the first value that is asked for; what stops the mode after it says more of the model.
    """
    ran = [error for _, error in stops if error.__cause__ is not None] or [stops[0][1]]
    last = ran[-1]
    others = tuple(f"{name}: {error.what}, {_line(error)}" for name, error in stops if error is not last)
    failed = Day0Error(last.where, last.what, facts=(*last.facts, *others), hint=last.hint)
    failed.__cause__ = last.__cause__
    return failed


def _line(error: Day0Error) -> str:
    return error.facts[0] if error.facts else f"at {error.where}"


def _mode(text: str) -> Mode:
    for mode in MODES:
        if text == mode:
            return mode
    raise Day0Error("--mode", f"'{text}' is not a mode", hint="use auto, meta, fake or real")


def _model_bytes(spec: ModelSpec) -> int:
    model = spec.build("meta")
    return sum(value.numel() * value.element_size() for value in (*model.parameters(), *model.buffers()))


def _trace(spec: ModelSpec, phases: tuple[Phase, ...], first: _Done, *others: _Done | str) -> Trace:
    done = [one for one in others if isinstance(one, _Done)]
    reasons = [
        first.reason,
        *(
            f"{_names(one)} in {one.mode}: {one.reason.removeprefix('auto: ')}"
            for one in done
            if one.mode != first.mode
        ),
    ]
    assumed: Counter[str] = Counter()
    for one in (first, *done):
        assumed.update(one.attempt.assumed)
    return Trace(
        model=_model_info(spec, first),
        mode=first.mode,
        mode_reason="; ".join(reasons),
        device="cpu" if first.mode == "real" else "meta",
        assumed=dict(sorted(assumed.items())),
        shrunk=first.spec.shrunk,
        phases=_phase_infos(phases, first, others),
        entries=merge_entries([one.attempt.entries for one in (first, *done)]),
        calls=merge_calls([one.attempt.functions for one in (first, *done)]),
    )


def _names(done: _Done) -> str:
    return ", ".join(done.attempt.calls)


def _model_info(spec: ModelSpec, done: _Done) -> ModelInfo:
    one = done.attempt
    return ModelInfo(
        source=spec.source,
        overrides=spec.overrides,
        dtype=dtype_name(spec.dtype),
        class_name=spec.class_name,
        parameters=one.parameters,
        parameter_bytes=one.parameter_bytes,
        weights=spec.weights() if done.mode == "real" else "",
        fingerprint=spec.fingerprint,
        adapted=done.spec.adapted(),
    )


def _phase_infos(phases: tuple[Phase, ...], first: _Done, others: tuple[_Done | str, ...]) -> tuple[PhaseInfo, ...]:
    where = {name: one for one in (first, *others) if isinstance(one, _Done) for name in one.attempt.calls}
    failures = [one for one in others if isinstance(one, str)]
    infos = []
    for phase in phases:
        done = where.get(phase.name)
        reason = failures.pop(0) if done is None else done.attempt.notes.get(phase.name, phase.reason)
        infos.append(
            PhaseInfo(
                name=phase.name,
                batch=phase.batch,
                tokens=phase.tokens,
                context=phase.context,
                images=phase.images,
                calls=done.attempt.calls[phase.name] if done else 0,
                reason=reason,
                mode=done.mode if done and done.mode != first.mode else "",
            )
        )
    return tuple(infos)

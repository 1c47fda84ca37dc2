"""Gates: a figure, perhaps with the interval in which it lies, held against a rule. Successful, failed or inconclusive."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from day0.errors import Day0Error, near_names
from day0.playbook import Gate
from day0.records import FigureResult, GateResult

__all__ = [
    "Figure",
    "as_figure",
    "figure_results",
    "first_failure",
    "judge_gates",
    "refuse_unknown_metrics",
    "warnings",
]

Verdict = Literal["successful", "failed", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Figure:
    """What a stage measured under one name."""

    value: float | None
    """None: it was not measured, and `why` says why not."""
    low: float | None = None
    high: float | None = None
    """The interval in which the true value lies; without one it is the value itself."""
    samples: int | None = None
    """How many samples the interval comes from."""
    unit: str = ""
    """Such as `s`, `B`, `B/s`, `nats`; empty for counts and ratios."""
    why: str = ""


def as_figure(value: float | Figure) -> Figure:
    """Return a plain number as a figure."""
    return value if isinstance(value, Figure) else Figure(float(value))


def judge_gates(gates: Iterable[Gate], figures: Mapping[str, float | Figure]) -> tuple[GateResult, ...]:
    """Hold the figures of a stage against its gates.

    A gate is successful when the whole interval keeps its rule, failed when the whole interval breaks it, and else
    inconclusive. NaN fails every rule. A figure that was not measured is inconclusive, with the reason. An inconclusive
    gate has `passed` unless it says `inconclusive: fail`; one that says nothing warns.
    """
    missing = "the stage did not measure it"
    return tuple(_judge(gate, as_figure(figures.get(gate.metric, Figure(None, why=missing)))) for gate in gates)


def _judge(gate: Gate, figure: Figure) -> GateResult:
    verdict, reason = _verdict(gate, figure)
    effect = gate.inconclusive or "warn"
    return GateResult(
        metric=gate.metric,
        rule=gate.rule,
        limit=gate.limit,
        value=figure.value,
        low=figure.low,
        high=figure.high,
        samples=figure.samples,
        verdict=verdict,
        inconclusive=effect,
        passed=verdict == "successful" or (verdict == "inconclusive" and effect != "fail"),
        reason=reason,
    )


def _verdict(gate: Gate, figure: Figure) -> tuple[Verdict, str]:
    if figure.value is None:
        return "inconclusive", f"{gate.metric} is not known: {figure.why or 'it was not measured'}"
    low = figure.value if figure.low is None else figure.low
    high = figure.value if figure.high is None else figure.high
    if math.isnan(figure.value) or math.isnan(low) or math.isnan(high):
        return "failed", f"{gate.metric} is nan, the gate says {gate.rule} {gate.limit:g}"
    keeps = {"<=": high <= gate.limit, ">=": low >= gate.limit, "==": low == high == gate.limit}[gate.rule]
    if keeps:
        return "successful", ""
    breaks = {"<=": low > gate.limit, ">=": high < gate.limit, "==": not low <= gate.limit <= high}[gate.rule]
    span = f" ({low:.6g} to {high:.6g})" if low != high else ""
    said = f"{gate.metric} is {figure.value:.6g}{span}, the gate says {gate.rule} {gate.limit:g}"
    return ("failed", said) if breaks else ("inconclusive", f"{said}{_more_samples(gate, figure, low, high)}")


def _more_samples(gate: Gate, figure: Figure, low: float, high: float) -> str:
    """Say how many more samples would decide: an interval shrinks with the root of their number."""
    if figure.samples is None or figure.value is None or gate.rule == "==":
        return ""
    away = abs(gate.limit - figure.value)
    half = high - figure.value if gate.limit > figure.value else figure.value - low
    if not away > 0.0 or not math.isfinite(half / away):
        return ""
    more = math.ceil(figure.samples * (half / away) ** 2 + 1e-6) - figure.samples
    return f"; {more:,} more samples would decide, if they are like those so far" if 0 < more < 1e9 else ""


def first_failure(gates: Iterable[GateResult]) -> str:
    """Return the reason of the first gate that fails its stage; empty where none does."""
    return next((gate.reason for gate in gates if not gate.passed), "")


def warnings(gates: Iterable[GateResult]) -> tuple[str, ...]:
    """Return what has to be shown although the stage passes: gates that could not be decided."""
    return tuple(one.reason for one in gates if one.verdict == "inconclusive" and one.inconclusive == "warn")


def figure_results(figures: Mapping[str, float | Figure]) -> dict[str, FigureResult]:
    """Return those figures that are more than a number, as they stand in the record."""
    return {
        name: FigureResult(value=one.value, low=one.low, high=one.high, samples=one.samples, unit=one.unit, why=one.why)
        for name, one in sorted(figures.items())
        if isinstance(one, Figure)
    }


def refuse_unknown_metrics(gates: Iterable[Gate], known: Collection[str], where: str) -> None:
    """Raise Day0Error for a gate on a name that is never measured there, so that nothing runs in vain."""
    for gate in gates:
        if gate.metric not in known:
            hint = near_names(gate.metric, tuple(known)) or f"it measures: {', '.join(sorted(known))}"
            raise Day0Error(where, f"a gate names '{gate.metric}', which is not measured there", hint=hint)

"""A canary for other tools: its calls as a Chrome trace, which Perfetto opens, and its figures as Prometheus text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from day0.analyzers.canary.operators import Timeline
from day0.records import CanaryReport, StageResult

__all__ = ["chrome_trace", "prometheus"]

MICROSECONDS = 1e6


def chrome_trace(timeline: Timeline, report: CanaryReport) -> dict[str, Any]:
    """Return the calls of the pass in the trace event format; times in microseconds.

    The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    names = [
        _name("process_name", 0, f"{report.device}: canary"),
        _name("thread_name", 1, "phases"),
        _name("thread_name", 2, "operators"),
    ]
    calls = [
        {
            "name": event.operator,
            "cat": event.phase or "pass",
            "ph": "X",
            "ts": event.begin * MICROSECONDS,
            "dur": event.seconds * MICROSECONDS,
            "pid": 1,
            "tid": 2,
            "args": {"dtypes": ", ".join(event.dtypes), "bytes": event.bytes, "flops": event.flops},
        }
        for event in timeline.events
    ]
    return {
        "displayTimeUnit": "ns",
        "otherData": {"clock": timeline.clock, "device": report.device, "lock": report.lock},
        "traceEvents": [*names, *_phases(timeline), *calls],
    }


def _name(kind: str, thread: int, text: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "ts": 0, "pid": 1, "tid": thread, "args": {"name": text}}


def _phases(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys(event.phase for event in timeline.events):
        events = [event for event in timeline.events if event.phase == name]
        begin = min(event.begin for event in events)
        end = max(event.begin + event.seconds for event in events)
        span = {"ts": begin * MICROSECONDS, "dur": (end - begin) * MICROSECONDS}
        yield {"name": name or "pass", "ph": "X", "pid": 1, "tid": 1, "args": {"calls": len(events)}, **span}


_STAGE_STATES = ("pass", "fail", "skipped")
_OPERATOR_FIGURES = {
    "calls": ("counter", "calls of an operator in one pass", "calls"),
    "seconds": ("gauge", "seconds of these calls by the device's clock", "seconds"),
    "bytes": ("gauge", "bytes that they read and write", "bytes"),
    "flops": ("gauge", "floating-point operations of these calls", "flops"),
    "bandwidth_share": ("gauge", "achieved bandwidth over the profile's peak", "bandwidth_share"),
    "compute_share": ("gauge", "achieved rate over the profile's peak", "compute_share"),
}


def prometheus(report: CanaryReport, model: str) -> str:
    """Return the figures of a canary in the text format of Prometheus, version 0.0.4."""
    base = {"model": model, "device": report.device}
    lines: list[str] = []
    states = [
        ({**base, "stage": stage.name, "status": state}, float(stage.status == state))
        for stage in report.stages
        for state in _STAGE_STATES
    ]
    lines += _family("day0_canary_stage", "gauge", "1 for the status that a stage has", states)
    metrics = [
        ({**base, "stage": stage.name, "metric": name}, value)
        for stage in report.stages
        for name, value in sorted(stage.metrics.items())
    ]
    lines += _family("day0_canary_metric", "gauge", "what a stage measured", metrics)
    lines += _family("day0_canary_gate", "gauge", "1 successful, 0 failed, NaN inconclusive", _gates(report, base))
    for name, (kind, text, field) in _OPERATOR_FIGURES.items():
        suffix = "_total" if kind == "counter" else ""
        lines += _family(f"day0_canary_operator_{name}{suffix}", kind, text, _operators(report.stages, base, field))
    return "\n".join(lines) + "\n"


def _gates(report: CanaryReport, base: dict[str, str]) -> list[tuple[dict[str, str], float]]:
    values = {"successful": 1.0, "failed": 0.0, "inconclusive": math.nan}
    return [
        ({**base, "stage": stage.name, "gate": f"{gate.metric} {gate.rule} {gate.limit:g}"}, values[gate.verdict])
        for stage in report.stages
        for gate in stage.gates
    ]


def _operators(
    stages: Iterable[StageResult], base: dict[str, str], field: str
) -> Iterator[tuple[dict[str, str], float]]:
    for stage in stages:
        for one in stage.operators:
            value = getattr(one, field)
            if value is not None:
                labels = {"stage": stage.name, "operator": one.operator, "implementation": one.implementation}
                yield {**base, **labels, "clock": one.clock}, float(value)


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[dict[str, str], float]]) -> list[str]:
    rows = [f"{name}{{{_labels(labels)}}} {_number(value)}" for labels, value in samples]
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *rows] if rows else []


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(value)

"""How fast: what each operator does in its time, modelled and measured, and how long a token takes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from day0.records import StageResult, TraceEntry
from day0.reports.bundle import Bundle
from day0.reports.summary import Fast, Point

__all__ = ["MOST", "Speed", "how_fast", "points", "speeds"]

MOST = 400
"""Operators of one kind in a report; more than any model calls, less than a hostile record holds."""


@dataclass(kw_only=True)
class _Sum:
    calls: int = 0
    seconds: float = 0.0
    bytes: int = 0
    flops: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Seconds of one kind of step, with the interval where there is one."""

    name: str
    source: str
    """The stage or the record that says so."""
    seconds: float
    low: float | None = None
    high: float | None = None
    samples: int | None = None


def points(bundle: Bundle) -> tuple[Point, ...]:
    """Return what the canary measured by operator, slowest first, then what the roofline of the inventory says."""
    return (*_measured(bundle)[:MOST], *_modelled(bundle)[:MOST])


def _measured(bundle: Bundle) -> list[Point]:
    """Take the widest stage that has figures of operators: stages repeat each other's calls."""
    stages = [stage for stage in bundle.canary.stages if stage.operators] if bundle.canary else []
    verdicts = _verdicts(bundle)
    return [
        Point(
            op=one.operator,
            how="simulated" if one.clock == "sim" else "measured",
            calls=one.calls,
            seconds=one.seconds,
            bytes=one.bytes,
            flops=one.flops,
            verdict=verdicts.get(one.operator, "replaced" if one.implementation != "native" else "native"),
            bandwidth_share=one.bandwidth_share,
            compute_share=one.compute_share,
        )
        for one in sorted(stages[-1].operators if stages else (), key=lambda one: (-one.seconds, one.operator))
    ]


def _verdicts(bundle: Bundle) -> dict[str, str]:
    """Return for each operator the verdict that has most of its time."""
    best: dict[str, tuple[float, str]] = {}
    for entry in bundle.inventory.entries if bundle.inventory else ():
        if entry.share > best.get(entry.op, (-1.0, ""))[0]:
            best[entry.op] = entry.share, entry.verdict
    return {op: verdict for op, (_, verdict) in best.items()}


def _modelled(bundle: Bundle) -> list[Point]:
    inventory = bundle.inventory
    if inventory is None or inventory.roofline_seconds <= 0.0:
        return []
    share = {entry.id: entry.share for entry in inventory.entries}
    verdicts, sums = _verdicts(bundle), defaultdict[str, _Sum](_Sum)
    for entry in bundle.trace.entries:
        if entry.id in share:
            _add(sums[entry.signature.op], entry, share[entry.id] * inventory.roofline_seconds)
    found = [
        Point(
            op=op,
            how="modelled",
            calls=one.calls,
            seconds=one.seconds,
            bytes=one.bytes,
            flops=one.flops,
            verdict=verdicts.get(op, ""),
        )
        for op, one in sums.items()
        if one.seconds > 0.0
    ]
    return sorted(found, key=lambda one: (-one.seconds, one.op))


def _add(total: _Sum, entry: TraceEntry, seconds: float) -> None:
    calls = sum(entry.counts.values())
    total.calls += calls
    total.seconds += seconds
    total.bytes += entry.bytes * calls
    total.flops += entry.flops * calls


def how_fast(bundle: Bundle) -> Fast | None:
    """Return the time of a token in the last canary stage that decodes; None where none did.

    A stage that decodes one sequence speaks before a soak, where several live together.
    """
    stages = [stage for stage in (bundle.canary.stages if bundle.canary else ()) if _token_seconds(stage) is not None]
    if not stages:
        return None
    stage = max(stages, key=lambda one: ("tokens_per_second" in one.metrics, stages.index(one)))
    return Fast(
        seconds_per_token=_token_seconds(stage) or 0.0,
        stage=stage.name,
        how="simulated" if "sim_seconds" in stage.metrics else "measured",
        roofline_share=_roofline_share(bundle),
    )


def _token_seconds(stage: StageResult) -> float | None:
    rate, seconds = stage.metrics.get("tokens_per_second", 0.0), stage.metrics.get("token_s", 0.0)
    if rate > 0.0:
        return 1.0 / rate
    return seconds if seconds > 0.0 else None


def _roofline_share(bundle: Bundle) -> float | None:
    """Return the time that the operators would take at the peaks, over the time that they took."""
    known = [one for one in _measured(bundle) if one.bandwidth_share is not None or one.compute_share is not None]
    whole = sum(one.seconds for one in known)
    ideal = sum(one.seconds * max(one.bandwidth_share or 0.0, one.compute_share or 0.0) for one in known)
    return ideal / whole if whole > 0.0 else None


def speeds(bundle: Bundle) -> tuple[Speed, ...]:
    """Return how long steps took: in canary stages, on a server, on several ranks."""
    return (*_of_stages(bundle), *_of_server(bundle), *_of_ranks(bundle))


def _of_stages(bundle: Bundle) -> list[Speed]:
    found = []
    for stage in bundle.canary.stages if bundle.canary else ():
        seconds = _token_seconds(stage)
        if seconds is None:
            continue
        figure = stage.figures.get("token_s")
        rate = stage.figures.get("tokens_per_second")
        low, high = (figure.low, figure.high) if figure else (None, None)
        if rate is not None and rate.low and rate.high and rate.low > 0.0:
            low, high = 1.0 / rate.high, 1.0 / rate.low
        samples = next((one.samples for one in (rate, figure) if one is not None), None)
        found.append(
            Speed(name="a token of decode", source=stage.name, seconds=seconds, low=low, high=high, samples=samples)
        )
    return found


_SERVER = {
    "first_token_p50": "first token, median",
    "first_token_p95": "first token, 95 of 100",
    "per_token_p50": "each further token, median",
}


def _of_server(bundle: Bundle) -> list[Speed]:
    figures = bundle.endpoint.figures if bundle.endpoint else {}
    return [
        Speed(name=title, source="endpoint", seconds=one.value, low=one.low, high=one.high, samples=one.samples)
        for name, title in _SERVER.items()
        if (one := figures.get(name)) is not None and one.value is not None and one.value > 0.0
    ]


def _of_ranks(bundle: Bundle) -> list[Speed]:
    found = []
    for one in bundle.ranks.scaling if bundle.ranks else ():
        for name, seconds in (("prefill", one.prefill_s), ("a token of decode", one.decode_s)):
            if seconds > 0.0:
                word = "rank" if one.ranks == 1 else "ranks"
                found.append(Speed(name=name, source=f"{one.ranks} {word}", seconds=seconds))
    return found

"""The roofline: operations per byte against operations per second, a point for each operator."""

from __future__ import annotations

from typing import Any

import altair as alt

from day0.reports.bundle import Bundle, Peaks
from day0.reports.charts.marks import COLOURS, Drawing, Key, Layers, Mark, draw, log_domain, numbered, xy
from day0.reports.figures import seconds_text, share_text
from day0.reports.findings import MEANINGS
from day0.reports.more_tables import point_table
from day0.reports.summary import Point, Summary

__all__ = ["draw_roofline"]

MOST = 120
"""Operators of one kind with a point; the slowest come first."""
ROOFS = 3

WIDTH, HEIGHT = 420, 300
_HOW = {
    "measured": "by the device's clock",
    "simulated": "by the clock of the simulated device",
    "modelled": "what the inventory's roofline and launch time allow",
}
_UNKNOWN = COLOURS["unknown"]


def draw_roofline(summary: Summary, bundle: Bundle) -> Drawing | None:
    """Return the chart; None where no operator has both operations and bytes, and a time."""
    counted = [one for one in summary.points if one.flops and one.bytes and one.seconds > 0.0]
    shown = [one for how in _HOW for one in [point for point in counted if point.how == how][:MOST]]
    if not shown:
        return None
    marks = [_mark(one) for one in shown]
    kinds = [how for how in _HOW if any(one.how == how for one in shown)]
    return Drawing(
        name="roofline",
        title="Roofline: operations for each byte, against operations per second",
        svg=draw(
            _chart(shown, marks, _roofs(bundle)),
            marks,
            f"Roofline with a point for each operator, {' and '.join(kinds)}; the table has the figures",
        ),
        keys=(*_keys(kinds), *_verdict_keys(shown)),
        table=point_table(summary.points),
        notes=_notes(summary, bundle, len(counted) - len(shown)),
    )


def _keys(kinds: list[str]) -> list[Key]:
    shapes = {"measured": "circle", "simulated": "circle", "modelled": "ring"}
    return [Key(group=how, colour="currentColor", title=f"{how}: {_HOW[how]}", shape=shapes[how]) for how in kinds]


def _verdict_keys(shown: list[Point]) -> list[Key]:
    return [
        Key(group=verdict, colour=colour, title=f"{verdict}: {MEANINGS[verdict]}")
        for verdict, colour in COLOURS.items()
        if any(one.verdict == verdict for one in shown)
    ]


def _notes(summary: Summary, bundle: Bundle, left: int) -> tuple[str, ...]:
    bare = len({one.op for one in summary.points if not one.flops})
    notes = []
    if bundle.peaks is None:
        notes.append("No roof is drawn: the device's profile is not there, or not the one of the inventory.")
    if bare:
        notes.append(f"{bare:,} operators whose operations nobody counts only move bytes; they are in the table.")
    if left > 0:
        notes.append(f"{left:,} faster operators are in the table only.")
    return tuple(notes)


def _mark(one: Point) -> Mark:
    parts = [f"{one.flops / one.seconds / 1e9:.3g} GFLOP/s at {one.flops / one.bytes:.3g} FLOP a byte, {one.how}"]
    parts.append(f"{one.calls:,} calls in {seconds_text(one.seconds)}")
    if one.bandwidth_share:
        parts.append(f"{share_text(one.bandwidth_share)} of the bandwidth")
    if one.compute_share:
        parts.append(f"{share_text(one.compute_share)} of the peak rate")
    verdict = one.verdict if one.verdict in MEANINGS else "unknown"
    return Mark(operator=one.op, groups=(one.how, verdict), text="; ".join((*parts, verdict)))


def _roofs(bundle: Bundle) -> list[tuple[str, float, float]]:
    """Return name, bandwidth and rate of the roofs for the dtypes that the model computes in, the highest first."""
    peaks: Peaks | None = bundle.peaks
    if peaks is None or peaks.bandwidth <= 0.0 or bundle.inventory is None:
        return []
    used = {dtype for entry in bundle.inventory.entries for dtype in entry.dtypes}
    rates = sorted(((rate, name) for name, rate in peaks.rates.items() if name in used and rate > 0.0), reverse=True)
    by_rate = {rate: ", ".join(name for other, name in rates if other == rate) for rate, _ in rates}
    return [(names, peaks.bandwidth, rate) for rate, names in list(by_rate.items())[:ROOFS]]


def _chart(shown: list[Point], marks: list[Mark], roofs: list[tuple[str, float, float]]) -> Layers:
    ridges = [rate / bandwidth for _, bandwidth, rate in roofs]
    low_x, high_x = log_domain([*(one.flops / one.bytes for one in shown), *ridges])
    low_y, high_y = log_domain([*(one.flops / one.seconds for one in shown), *(rate for _, _, rate in roofs)])
    x = xy("intensity", "FLOP for each byte moved", low_x, high_x, channel=alt.X)
    y = xy("rate", "FLOP/s", low_y, high_y, channel=alt.Y)
    rows = [
        {
            **row,
            "intensity": one.flops / one.bytes,
            "rate": one.flops / one.seconds,
            "verdict": mark.groups[1],
            "modelled": one.how == "modelled",
        }
        for row, one, mark in zip(numbered(marks), shown, marks, strict=True)
    ]
    colour = alt.Color("verdict:N", legend=None, scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())))
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y, color=colour, description="mark:N")
    modelled = base.transform_filter("datum.modelled").mark_point(filled=False, size=60, opacity=0.85, strokeWidth=1.5)
    achieved = base.transform_filter("!datum.modelled").mark_point(filled=True, size=70, opacity=1.0, shape="circle")
    layers = [*_roof_layers(roofs, x, y, (low_x, high_x), low_y), modelled, achieved]
    chart: Layers = alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)
    return chart


def _roof_layers(
    roofs: list[tuple[str, float, float]], x: alt.X, y: alt.Y, span: tuple[float, float], low_y: float
) -> list[Any]:
    layers: list[Any] = []
    for name, bandwidth, rate in roofs:
        # Only what lies within the drawing: the slope begins where it comes in from below.
        begin = max(span[0], low_y / bandwidth)
        ends = [(begin, min(rate, begin * bandwidth)), (rate / bandwidth, rate), (span[1], rate)]
        values = [{"intensity": a, "rate": b} for a, b in ends]
        line = alt.Chart(alt.InlineData(values=values)).mark_line(color="currentColor", opacity=0.55, strokeWidth=1.5)
        layers.append(line.encode(x=x, y=y))
        text = alt.Chart(alt.InlineData(values=[{"intensity": span[1], "rate": rate, "name": name}]))
        look: dict[str, Any] = {
            "align": "right",
            "baseline": "bottom",
            "dy": -3,
            "fontSize": 11,
            "fill": "currentColor",
        }
        layers.append(text.mark_text(**look).encode(x=x, y=y, text="name:N"))
    return layers

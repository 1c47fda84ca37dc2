"""Charts with a line of text for each point: how much of its peak an operator reaches, how long steps take, rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from day0.reports import tables
from day0.reports.charts.marks import COLOURS, Drawing, Key, Layers, Mark, draw, log_domain, log_scale, numbered, xy
from day0.reports.clean import clean
from day0.reports.figures import seconds_text, share_text
from day0.reports.findings import MEANINGS
from day0.reports.more_tables import point_table, speed_table
from day0.reports.performance import Speed
from day0.reports.summary import Point, Step, Summary

__all__ = ["draw_latency", "draw_peaks", "draw_rates"]

MOST = 15
"""Lines of one chart."""
WIDTH, ROW, BAR = 380, 36, 11
_BLUE = COLOURS["decomposes"]
_FONT: dict[str, Any] = {"fontSize": 12, "fill": "currentColor", "baseline": "middle"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """One line: its text, its figure as text, and where its bar begins and ends on a scale of 0 to 1."""

    name: str
    figure: str
    end: float
    colour: str
    mark: Mark


def draw_peaks(summary: Summary) -> Drawing | None:
    """Return how much of the device's bandwidth or peak rate the slowest operators reach; None where nobody knows."""
    found = [one for one in summary.points if one.how != "modelled" and _reached(one) is not None]
    if not found:
        return None
    lines = [_peak(one) for one in found[:MOST]]
    how = found[0].how
    title = f"How much of its peak each of the slowest operators reaches ({how})"
    return Drawing(
        name="peaks",
        title=title,
        svg=draw(_bars(lines), [line.mark for line in lines], f"{title}; the table has the figures"),
        keys=tuple(
            Key(group=verdict, colour=colour, title=f"{verdict}: {MEANINGS[verdict]}")
            for verdict, colour in COLOURS.items()
            if any(verdict in line.mark.groups for line in lines)
        ),
        table=point_table(tuple(one for one in summary.points if one.how != "modelled")),
        notes=("Of the bandwidth or of the rate, whichever is more. The slowest operators stand first.",),
    )


def _reached(one: Point) -> float | None:
    shares = [share for share in (one.bandwidth_share, one.compute_share) if share is not None]
    return max(shares, default=None)


def _peak(one: Point) -> _Line:
    reached = _reached(one) or 0.0
    of = "rate" if (one.compute_share or 0.0) > (one.bandwidth_share or 0.0) else "bandwidth"
    verdict = one.verdict if one.verdict in MEANINGS else "unknown"
    text = f"{share_text(reached)} of the {of}, {one.calls:,} calls in {seconds_text(one.seconds)}; {verdict}"
    return _Line(
        name=one.op,
        figure=f"{share_text(reached) or '0 %'} · {seconds_text(one.seconds)}",
        end=min(1.0, reached),
        colour=next((colour for name, colour in COLOURS.items() if name == verdict), COLOURS["unknown"]),
        mark=Mark(operator=one.op, groups=(verdict,), text=text),
    )


_RATES = ("_rate", "_share", "accuracy", "_overlap")
"""How metrics end that are shares of a whole."""


def draw_rates(summary: Summary) -> Drawing | None:
    """Return metrics that are shares, such as the hit rate of the expert cache; None where no stage has one."""
    lines = [line for step in summary.canary for line in _shares(step)][:MOST]
    if not lines:
        return None
    title = "Rates and shares by stage"
    return Drawing(
        name="rates",
        title=title,
        svg=draw(_bars(lines), [line.mark for line in lines], f"{title}; the table has the figures"),
        keys=(),
        table=tables.metrics(summary),
        operators=False,
    )


def _shares(step: Step) -> list[_Line]:
    return [
        _Line(
            name=f"{name} in {step.name}",
            figure=share_text(value) or "0 %",
            end=value,
            colour=_BLUE,
            mark=Mark(operator=name, groups=(), text=f"{value:.4g} in {step.name}"),
        )
        for name, value in sorted(step.metrics.items())
        if name.endswith(_RATES) and 0.0 <= value <= 1.0
    ]


def _bars(lines: Sequence[_Line]) -> Layers:
    """Return a bar below each text, on a scale from 0 to all."""
    height = ROW * len(lines)
    scale_y = alt.Scale(domain=[0, height], reverse=True, nice=False)
    marks = numbered([line.mark for line in lines])
    values = [
        {**row, "name": clean(line.name, limit=60), "figure": line.figure, "colour": line.colour,
         "end": max(0.004, line.end), "whole": 1.0, "at": ROW * n + 9, "top": ROW * n + 18, "bottom": ROW * n + 18 + BAR}
        for n, (row, line) in enumerate(zip(marks, lines, strict=True))
    ]  # fmt: skip
    base = alt.Chart(alt.InlineData(values=values))
    scale_x = alt.Scale(domain=[0, 1], nice=False)
    x = alt.X("end:Q", scale=scale_x, axis=None)
    place = {"y": alt.Y("top:Q", scale=scale_y, axis=None), "y2": "bottom:Q"}
    ground = base.mark_bar(color="currentColor", opacity=0.1).encode(
        x=alt.X("whole:Q", scale=scale_x, axis=None), x2=alt.datum(0.0), **place
    )
    bars = base.mark_bar().encode(
        x=x, x2=alt.datum(0.0), color=alt.Color("colour:N", scale=None, legend=None), description="mark:N", **place
    )
    at = alt.Y("at:Q", scale=scale_y, axis=None)
    names = base.mark_text(align="left", limit=WIDTH - 120, **_FONT).encode(x=alt.value(0), y=at, text="name:N")
    figures = base.mark_text(align="right", **_FONT).encode(x=alt.value(WIDTH), y=at, text="figure:N")
    chart: Layers = alt.layer(ground, bars, names, figures).properties(width=WIDTH, height=height)
    return chart


def draw_latency(found: tuple[Speed, ...]) -> Drawing | None:
    """Return how long steps took, with their intervals; None where nothing was timed."""
    shown = [one for one in found if one.seconds > 0.0][:MOST]
    if not shown:
        return None
    marks = [_timed(one) for one in shown]
    title = "How long a step takes"
    return Drawing(
        name="latency",
        title=title,
        svg=draw(_dots(shown, marks), marks, f"{title}; the table has the figures"),
        keys=(),
        table=speed_table(found),
        operators=False,
    )


def _timed(one: Speed) -> Mark:
    span = f", {seconds_text(one.low)} to {seconds_text(one.high)}" if one.low and one.high else ""
    return Mark(operator=one.source, groups=(), text=f"{one.name}: {seconds_text(one.seconds)}{span}")


def _dots(shown: Sequence[Speed], marks: Sequence[Mark]) -> Layers:
    height = ROW * len(shown)
    ends = [value for one in shown for value in (one.seconds, one.low, one.high) if value and value > 0.0]
    low, high = log_domain(ends)
    x = xy("seconds", "seconds", low, high, channel=alt.X)
    scale_y = alt.Scale(domain=[0, height], reverse=True, nice=False)
    values = [
        {**row, "name": clean(f"{one.source}: {one.name}", limit=60), "figure": seconds_text(one.seconds),
         "seconds": one.seconds, "low": one.low or one.seconds, "high": one.high or one.seconds,
         "at": ROW * n + 9, "dot": ROW * n + 25}
        for n, (row, one) in enumerate(zip(numbered(marks), shown, strict=True))
    ]  # fmt: skip
    base = alt.Chart(alt.InlineData(values=values))
    dot = alt.Y("dot:Q", scale=scale_y, axis=None)
    spans = base.mark_rule(strokeWidth=3, color=_BLUE, opacity=0.5).encode(
        x=alt.X("low:Q", scale=log_scale(low, high)), x2="high:Q", y=dot
    )
    dots = base.mark_circle(size=80, color=_BLUE, opacity=1.0).encode(x=x, y=dot, description="mark:N")
    at = alt.Y("at:Q", scale=scale_y, axis=None)
    names = base.mark_text(align="left", limit=WIDTH - 80, **_FONT).encode(x=alt.value(0), y=at, text="name:N")
    figures = base.mark_text(align="right", **_FONT).encode(x=alt.value(WIDTH), y=at, text="figure:N")
    chart: Layers = alt.layer(spans, dots, names, figures).properties(width=WIDTH, height=height)
    return chart

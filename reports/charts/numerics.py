"""Error against what the dtype itself costs, one point for each operator's worst case, each under its own limit."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import altair as alt

from day0.reports.charts.marks import TONES, Drawing, Key, Layers, Mark, draw, log_domain, log_scale, numbered, xy
from day0.reports.more_tables import error_table
from day0.reports.summary import OperatorError, Summary
from day0.reports.words import tone, word

__all__ = ["MOST", "draw_numerics"]

MOST = 150
"""Operators with a point; those that fail and those nearest to their limit come first."""

WIDTH, HEIGHT = 420, 300


def draw_numerics(summary: Summary) -> Drawing | None:
    """Return the chart; None where no operator has an error of its own.

    An operator without any error is exact and has no place on a logarithmic axis: it is counted in a note. An error
    that is no finite number stands at the upper edge, a yardstick of zero at the left one.
    """
    inexact = [one for one in summary.errors if one.error != 0.0]
    shown = inexact[:MOST]
    if not shown:
        return None
    marks = [_mark(one) for one in shown]
    title = "Worst error of each operator, over what its dtype itself costs"
    return Drawing(
        name="errors",
        title=title,
        svg=draw(_chart(shown, marks), marks, f"{title}, with the limit of each; the table has the figures"),
        keys=(
            *(
                Key(group=name, colour=TONES[name], title=text, shape="circle")
                for name, text in (("bad", "fails"), ("good", "passes"), ("wait", "right, but not on the device"))
                if any(name in mark.groups for mark in marks)
            ),
        ),
        table=error_table(summary),
        notes=_notes(summary, inexact),
    )


def _notes(summary: Summary, inexact: list[OperatorError]) -> tuple[str, ...]:
    exact, left = len(summary.errors) - len(inexact), len(inexact) - MOST
    notes = ["The short line above a point is its limit; the dashed diagonal is an error as large as the dtype's own."]
    if exact:
        notes.append(f"{exact:,} operators have no error at all and are not drawn.")
    if left > 0:
        notes.append(f"{left:,} operators further from their limits are in the table only.")
    return tuple(notes)


def _mark(one: OperatorError) -> Mark:
    own = f", the dtype's own {one.yardstick:.2g}" if one.yardstick is not None else ""
    limit = f", limit {one.limit:.2g}" if one.limit is not None else ""
    worst = f"; {one.worst}" if one.worst else ""
    text = f"{word(one.status)}; error {one.error:.2g}{own}{limit}; {one.shapes} ({one.regime}){worst}"
    return Mark(operator=one.op, groups=(tone(one.status),), text=text)


def _chart(shown: list[OperatorError], marks: list[Mark]) -> Layers:
    low_x, high_x = log_domain(filter(_drawable, (one.yardstick for one in shown)))
    low_y, high_y = log_domain(filter(_drawable, (value for one in shown for value in (one.error, one.limit))))
    rows = []
    for row, one, mark in zip(numbered(marks), shown, marks, strict=True):
        place = {"own": _within(one.yardstick, low_x, high_x), "error": _within(one.error, low_y, high_y)}
        limit = _within(one.limit, low_y, high_y) if _drawable(one.limit) else None
        rows.append({**row, **place, "limit": limit, "tone": mark.groups[0]})
    x = xy("own", "error of the dtype itself", low_x, high_x, channel=alt.X)
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, color=_colour())
    error = xy("error", "error on the device", low_y, high_y, channel=alt.Y)
    height = alt.Y("limit:Q", scale=log_scale(low_y, high_y))
    limited = base.transform_filter("datum.limit != null").encode(description="part:N")
    stems = limited.mark_rule(strokeWidth=1, opacity=0.35).encode(y=error, y2="limit:Q")
    ticks = limited.mark_tick(thickness=2, size=9, orient="horizontal").encode(y=height)
    dots = base.mark_circle(size=64, opacity=1.0).encode(y=error, description="mark:N")
    chart: Layers = alt.layer(_diagonal(low_x, high_x, low_y, high_y), stems, ticks, dots).properties(
        width=WIDTH, height=HEIGHT
    )
    return chart


def _colour() -> alt.Color:
    return alt.Color("tone:N", legend=None, scale=alt.Scale(domain=list(TONES), range=list(TONES.values())))


def _drawable(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and value > 0.0


def _within(value: float | None, low: float, high: float) -> float:
    """Return a value as it can be drawn: zero and less at the lower edge, what is no number at the upper one."""
    if value is None or value <= 0.0:
        return low
    return min(max(value, low), high) if math.isfinite(value) else high


def _diagonal(low_x: float, high_x: float, low_y: float, high_y: float) -> Any:
    low, high = max(low_x, low_y), min(high_x, high_y)
    ends = [{"own": end, "error": end} for end in (low, high)] if low < high else []
    return (
        alt.Chart(alt.InlineData(values=ends))
        .mark_line(color="currentColor", strokeDash=[4, 4], opacity=0.6, strokeWidth=1.2)
        .encode(x=alt.X("own:Q"), y=alt.Y("error:Q"))
    )

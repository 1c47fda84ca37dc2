"""Where the model's time goes, by operator, and what the inventory says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from day0.records import Verdict
from day0.reports import tables
from day0.reports.charts.marks import COLOURS, Drawing, Key, Layers, Mark, draw, numbered
from day0.reports.clean import clean
from day0.reports.figures import share_text
from day0.reports.findings import MEANINGS
from day0.reports.summary import Operator, Summary

__all__ = ["ROW", "WIDTH", "draw_shares"]

BARS = 12
"""Operators that get a bar of their own."""

WIDTH, ROW = 380, 36
_FONT: dict[str, Any] = {"fontSize": 12, "fill": "currentColor", "baseline": "middle"}


def draw_shares(summary: Summary) -> Drawing | None:
    """Return a bar for each of the heaviest operators, cut by verdict; None without an inventory."""
    shown = _bars(summary.operators)
    if not shown:
        return None
    marks, rows = _segments(shown)
    unit = "the roofline time" if summary.weighted_by == "share" else "calls"
    on = f" on {summary.device}" if summary.weighted_by == "share" else ""
    return Drawing(
        name="time",
        title=f"Share of {unit}{on}, by operator and verdict",
        svg=draw(_chart(shown, rows), marks, f"Share of {unit} by operator and verdict; the table has the figures"),
        keys=tuple(
            Key(group=verdict, colour=colour, title=f"{verdict}: {MEANINGS[verdict]}")
            for verdict, colour in COLOURS.items()
            if any(verdict in mark.groups for mark in marks)
        ),
        table=tables.operator_table(summary),
    )


def _chart(shown: Sequence[Operator], rows: list[dict[str, Any]]) -> Layers:
    height, longest = ROW * len(shown), max(sum(one.weights.values()) for one in shown)
    scale_x = alt.Scale(domain=[0, longest or 1.0], nice=False)
    scale_y = alt.Scale(domain=[0, height], reverse=True, nice=False)
    bars = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar(cornerRadius=1.5)
        .encode(
            x=alt.X("start:Q", scale=scale_x, axis=None),
            x2="end:Q",
            y=alt.Y("top:Q", scale=scale_y, axis=None),
            y2="bottom:Q",
            color=alt.Color(
                "verdict:N", legend=None, scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
            ),
            description="mark:N",
        )
    )
    names = _texts(shown, "name", alt.value(0), scale_y).mark_text(align="left", limit=WIDTH - 80, **_FONT)
    figures = _texts(shown, "figure", alt.value(WIDTH), scale_y).mark_text(align="right", **_FONT)
    chart: Layers = alt.layer(bars, names, figures).properties(width=WIDTH, height=height)
    return chart


def _texts(shown: Sequence[Operator], field: str, x: Any, scale_y: alt.Scale) -> alt.Chart:
    values = [
        {"name": clean(one.op, limit=60), "figure": share_text(sum(one.weights.values())) or "0 %", "at": ROW * n + 9}
        for n, one in enumerate(shown)
    ]
    return alt.Chart(alt.InlineData(values=values)).encode(
        x=x, y=alt.Y("at:Q", scale=scale_y, axis=None), text=f"{field}:N"
    )


def _bars(operators: Sequence[Operator]) -> list[Operator]:
    """Return the heaviest operators, and the rest as one more."""
    rest = operators[BARS:]
    shown = list(operators[:BARS])
    if rest:
        weights: dict[Verdict, float] = {}
        for one in rest:
            for verdict, weight in one.weights.items():
                weights[verdict] = weights.get(verdict, 0.0) + weight
        shown.append(
            Operator(
                op=f"{len(rest):,} other operators",
                signatures=sum(one.signatures for one in rest),
                calls=sum(one.calls for one in rest),
                share=sum(one.share for one in rest),
                weights=weights,
            )
        )
    return shown


def _segments(shown: Sequence[Operator]) -> tuple[list[Mark], list[dict[str, Any]]]:
    """Return a mark for each operator and verdict, and the place of each bar."""
    marks: list[Mark] = []
    places: list[dict[str, Any]] = []
    for number, one in enumerate(shown):
        start = 0.0
        for verdict in MEANINGS:
            weight = one.weights.get(verdict, 0.0)
            if weight > 0.0:
                marks.append(Mark(operator=one.op, groups=(verdict,), text=f"{share_text(weight)} {verdict}"))
                place = {"start": start, "end": start + weight, "top": ROW * number + 18, "bottom": ROW * number + 29}
                places.append({**place, "verdict": verdict})
            start += weight
    return marks, [{**row, **place} for row, place in zip(numbered(marks), places, strict=True)]

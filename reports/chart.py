"""The one chart: where the model's time goes, and what the inventory says of it. Altair, as SVG for inlining.

Text and lines take `currentColor`, so that the same drawing serves light and dark pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt
import vl_convert

from day0.records import Verdict
from day0.reports.clean import clean
from day0.reports.figures import share_text
from day0.reports.findings import MEANINGS
from day0.reports.summary import Operator, Summary

__all__ = ["COLOURS", "draw"]

COLOURS: dict[Verdict, str] = {
    "native": "#2f8f5b",
    "out_wrapper": "#1f8f8f",
    "decomposes": "#3b82c4",
    "decomposes_with_sync": "#8a7a1f",
    "replaced": "#8168d0",
    "cpu_fallback": "#c2691c",
    "leaf_missing": "#d6559b",
    "missing": "#d03a45",
    "crashes": "#a0522d",
    "unknown": "#7a828c",
}
"""Each at least 3 : 1 against the light and the dark card; the table beside the chart says the same in words."""

BARS = 12
"""Operators that get a bar of their own."""

WIDTH, ROW = 380, 36
_TEXT = "currentColor"


def draw(summary: Summary) -> str:
    """Return the chart as an SVG element without references to anything outside; empty without an inventory."""
    shown = _bars(summary.operators)
    if not shown:
        return ""
    height, longest = ROW * len(shown), max(sum(one.weights.values()) for one in shown)
    scale_x = alt.Scale(domain=[0, longest or 1.0], nice=False)
    scale_y = alt.Scale(domain=[0, height], reverse=True, nice=False)
    x = alt.X("start:Q", scale=scale_x, axis=None)
    bars = (
        alt.Chart(alt.InlineData(values=list(_segments(shown))))
        .mark_bar(cornerRadius=1.5)
        .encode(
            x=x,
            x2="end:Q",
            y=alt.Y("top:Q", scale=scale_y, axis=None),
            y2="bottom:Q",
            color=alt.Color(
                "verdict:N", legend=None, scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
            ),
            description="label:N",
        )
    )
    names = _texts(shown, "name", alt.value(0), scale_y).mark_text(align="left", limit=WIDTH - 80, **_FONT)
    figures = _texts(shown, "figure", alt.value(WIDTH), scale_y).mark_text(align="right", **_FONT)
    chart = (
        alt.layer(bars, names, figures)
        .properties(width=WIDTH, height=height, background="transparent", padding=2)
        .configure_view(stroke=None)
    )
    return _inline(vl_convert.vegalite_to_svg(chart.to_dict()), summary)


_FONT: dict[str, Any] = {"fontSize": 12, "font": "system-ui, sans-serif", "fill": _TEXT, "baseline": "middle"}


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


def _segments(shown: Sequence[Operator]) -> Iterator[dict[str, object]]:
    for number, one in enumerate(shown):
        start = 0.0
        for verdict in MEANINGS:
            weight = one.weights.get(verdict, 0.0)
            if weight > 0.0:
                yield {
                    "start": start,
                    "end": start + weight,
                    "top": ROW * number + 18,
                    "bottom": ROW * number + 29,
                    "verdict": verdict,
                    "label": f"{one.op}: {share_text(weight)} {verdict}",
                }
            start += weight


def _inline(svg: str, summary: Summary) -> str:
    """Name the drawing for screen readers; drop namespaces, which HTML does not need, and the fixed size."""
    unit = "roofline time" if summary.weighted_by == "share" else "calls"
    label = f"Share of {unit} by operator and verdict; the same figures stand in the table below"
    box = re.search(r'viewBox="[\d. -]+"', svg)
    head = f'<svg class="chart" role="img" aria-label="{label}" {box.group() if box else ""}>'
    return head + svg[svg.index(">") + 1 :]

"""The canary stages in their order, with a mark for each gate."""

from __future__ import annotations

from typing import Any

import altair as alt

from day0.reports import tables
from day0.reports.charts.marks import TONES, Drawing, Key, Layers, Mark, draw, numbered
from day0.reports.summary import GateLine, Step, Summary
from day0.reports.words import tone, word

__all__ = ["draw_gates"]

WIDTH, ROW, NAME, GAP = 380, 24, 118, 24
MOST = 24
"""Gates of one stage that are drawn; no stage has as many."""
_SHAPES = {"good": "circle", "bad": "diamond", "wait": "triangle-up"}
"""Colour alone would not tell them apart."""


def draw_gates(summary: Summary) -> Drawing | None:
    """Return a line for each stage; None without a canary. A record keeps no times: what is drawn is the order."""
    if not summary.canary:
        return None
    marks = [mark for step in summary.canary for mark in _marks(step)]
    title = "The canary's stages in their order, with their gates"
    keys = [
        Key(group=name, colour=TONES[name], title=text, shape=_SHAPES[name])
        for name, text in (("good", "kept"), ("bad", "not kept"), ("wait", "not decided, or not run"))
        if any(name in mark.groups for mark in marks)
    ]
    longest = max((len(step.gates) for step in summary.canary), default=0)
    more = (f"{longest - MOST:,} gates of the longest stage are in the table only.",) if longest > MOST else ()
    return Drawing(
        name="gates",
        title=title,
        svg=draw(_chart(summary.canary, marks), marks, f"{title}; the table has the figures"),
        keys=tuple(keys),
        table=tables.gates(summary),
        notes=more,
        operators=False,
    )


def _marks(step: Step) -> list[Mark]:
    reason = f": {step.reason}" if step.reason else ""
    stage = Mark(operator=step.name, groups=(tone(step.status),), text=f"{word(step.status)}{reason}")
    return [stage, *(_gate(step, gate) for gate in step.gates[:MOST])]


def _gate(step: Step, gate: GateLine) -> Mark:
    value = "not measured" if gate.value is None else f"is {gate.value:.4g}"
    span = f" ({gate.low:.3g} to {gate.high:.3g})" if gate.low is not None and gate.high is not None else ""
    kind = "wait" if gate.verdict == "inconclusive" and gate.passed else "good" if gate.passed else "bad"
    said = {"wait": "not decided", "good": "kept", "bad": "not kept"}[kind]
    return Mark(operator=step.name, groups=(kind,), text=f"{gate.rule} {said}, {value}{span}")


def _chart(steps: tuple[Step, ...], marks: list[Mark]) -> Layers:
    longest = max((min(len(step.gates), MOST) for step in steps), default=1)
    width = max(WIDTH, NAME + GAP * (1 + longest))
    height = ROW * len(steps)
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, width], nice=False), axis=None)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[0, height], reverse=True, nice=False), axis=None)
    places = [(n, k) for n, step in enumerate(steps) for k in range(1 + min(len(step.gates), MOST))]
    rows = [
        {**row, "x": NAME + GAP * k, "y": ROW * n + ROW / 2, "tone": mark.groups[0], "gate": k > 0}
        for row, (n, k), mark in zip(numbered(marks), places, marks, strict=True)
    ]
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=x, y=y, color=_scale(alt.Color, list(TONES.values())), description="mark:N"
    )
    stages = base.transform_filter("!datum.gate").mark_square(size=190, opacity=1.0)
    gates = base.transform_filter("datum.gate").mark_point(filled=True, size=90, opacity=1.0)
    gates = gates.encode(shape=_scale(alt.Shape, list(_SHAPES.values())))
    chart: Layers = alt.layer(_line(height, x, y), _names(steps, x, y), stages, gates).properties(
        width=width, height=height
    )
    return chart


def _scale(channel: Any, values: list[str]) -> Any:
    return channel("tone:N", legend=None, scale=alt.Scale(domain=list(TONES), range=values))


def _line(height: int, x: alt.X, y: alt.Y) -> alt.Chart:
    """Join the stages: each one builds on the one above."""
    ends = [{"x": NAME, "y": ROW / 2}, {"x": NAME, "y": height - ROW / 2}]
    line: alt.Chart = (
        alt.Chart(alt.InlineData(values=ends)).mark_line(color="currentColor", opacity=0.3).encode(x=x, y=y)
    )
    return line


def _names(steps: tuple[Step, ...], x: alt.X, y: alt.Y) -> alt.Chart:
    values = [{"x": NAME - 16, "y": ROW * n + ROW / 2, "name": step.name} for n, step in enumerate(steps)]
    texts: alt.Chart = (
        alt.Chart(alt.InlineData(values=values))
        .mark_text(align="right", baseline="middle", fontSize=12, fill="currentColor", limit=NAME - 18)
        .encode(x=x, y=y, text="name:N")
    )
    return texts

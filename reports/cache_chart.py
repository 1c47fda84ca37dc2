"""Hit rates of expert caches against their size: a line for each policy and division of the slots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import altair as alt
import vl_convert

from day0.converters.online.simulate import Simulated
from day0.errors import Day0Error
from day0.reports.clean import clean

__all__ = ["WORDS", "cache_chart", "write_cache_chart"]

WORDS = {
    ("lru", "layer"): "least recently used, by layer",
    ("lrc", "layer"): "least recently converted, by layer",
    ("lru", "shared"): "least recently used, one pool",
    ("lrc", "shared"): "least recently converted, one pool",
}
_COLOURS = ("#1b6ca8", "#2f8f5b", "#c2691c", "#d03a45")
_DASHES = ([1, 0], [6, 3], [1, 0], [6, 3])
"""Two of the lines often lie on each other: colour alone would hide one."""


def cache_chart(results: Sequence[Simulated], *, need: int, title: str) -> alt.LayerChart:
    """Return the chart; a rule marks `need`, the experts that one decoding step of all layers needs."""
    values = [
        {"slots": max(1, one.plan.slots), "rate": one.hit_rate, "policy": WORDS[one.plan.policy, one.plan.split]}
        for one in results
    ]
    shown = [name for name in WORDS.values() if any(value["policy"] == name for value in values)]
    places = [list(WORDS.values()).index(name) for name in shown]
    colour = alt.Color(
        "policy:N",
        title=None,
        scale=alt.Scale(domain=shown, range=[_COLOURS[place] for place in places]),
        legend=alt.Legend(
            orient="bottom", columns=2, labelLimit=260, symbolType="stroke", symbolSize=500, symbolStrokeWidth=2
        ),
    )
    dash = alt.StrokeDash(
        "policy:N", title=None, scale=alt.Scale(domain=shown, range=[_DASHES[place] for place in places])
    )
    x = alt.X("slots:Q", title="slots of all layers together", scale=alt.Scale(type="log", nice=False))
    y = alt.Y("rate:Q", title="hit rate", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))
    base = alt.Chart(alt.InlineData(values=values))
    # Points of the same mark: a second layer would put its discs over the dashes of the legend.
    lines = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=40)).encode(
        x=x, y=y, color=colour, strokeDash=dash
    )
    mark = alt.Chart(alt.InlineData(values=[{"slots": need, "text": f"one step needs {need:,}"}]))
    rule = mark.mark_rule(color="#7a828c", strokeDash=[2, 3]).encode(x="slots:Q")
    text = mark.mark_text(align="left", dx=5, color="#5a626c").encode(x="slots:Q", y=alt.value(8), text="text:N")
    chart: alt.LayerChart = (
        alt.layer(rule, text, lines)
        .properties(width=520, height=300, title=clean(title, limit=90), background="white", padding=8)
        .configure_title(fontSize=13)
    )
    return chart


def write_cache_chart(path: Path, chart: alt.LayerChart) -> None:
    """Write it as .svg, .png or .html (a page with the drawing in it, which loads nothing).

    Raises Day0Error for another suffix, or where the file cannot be written.
    """
    plain = chart.to_dict()
    if path.suffix == ".png":
        data = vl_convert.vegalite_to_png(plain, scale=2.0)
    elif path.suffix in (".svg", ".html"):
        svg = vl_convert.vegalite_to_svg(plain)
        page = f'<!doctype html>\n<meta charset="utf-8">\n<title>Expert cache</title>\n{svg}\n'
        data = (page if path.suffix == ".html" else svg).encode()
    else:
        raise Day0Error(f"--plot {path}", f"no drawing ends in '{path.suffix}'", hint="use .svg, .png or .html")
    try:
        path.write_bytes(data)
    except OSError as error:
        raise Day0Error(f"--plot {path}", f"cannot be written: {error.strerror}", hint="name another place") from None

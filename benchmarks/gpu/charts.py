"""The charts of a page of figures, as SVG files. Each begins with a comment that names the data that it was made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from day0.hashing import hash_json

__all__ = ["CHARTS", "mark_of", "write_charts"]

Record = Mapping[str, Any]
Values = list[dict[str, Any]]
COLOURS = ("#1b6ca8", "#c2691c", "#2f8f5b", "#d03a45")


def operator_values(record: Record) -> Values:
    """Return a bar for each case."""
    return [
        {"case": f"{name}, {case}", "fraction": round(one["fraction"], 4), "bound": one["bound"]}
        for name, operator in sorted(record["operators"].items())
        for case, one in sorted(operator.get("cases", {}).items())
    ]


def operator_chart(values: Values) -> alt.Chart:
    """Return bars; the rule at 1 is the ceiling."""
    bars = (
        alt.Chart(alt.InlineData(values=values))
        .mark_bar()
        .encode(
            x=alt.X("fraction:Q", title="share of the nearer ceiling"),
            y=alt.Y("case:N", title=None, sort="-x", axis=alt.Axis(labelLimit=320)),
            color=alt.Color(
                "bound:N", title="bound by", scale=alt.Scale(domain=["copy", "product"], range=COLOURS[:2])
            ),
        )
    )
    rule = (
        alt.Chart(alt.InlineData(values=[{"one": 1}])).mark_rule(color="#7a828c", strokeDash=[3, 3]).encode(x="one:Q")
    )
    return alt.layer(bars, rule).properties(width=420)


def context_values(record: Record) -> Values:
    """Return sparse and dense times by context and batch, at the commonest size of the selection."""
    return [
        {"context": row["context"], "ms": round(ms, 5), "way": way, "requests": f"{row['batch']} requests"}
        for row in record["sweeps"]
        if "ms" in row and row["topk"] == 2048
        for way, ms in (("sparse layer", row["ms"]["sparse layer"]), ("dense", dense_of(row["ms"])))
    ]


def context_chart(values: Values) -> alt.Chart:
    """Return lines over the context."""
    return lines(values, "context", "tokens of context", "requests", "way")


def selection_values(record: Record) -> Values:
    """Return the parts of a sparse layer by the size of its selection, at the context with the most sizes."""
    rows = [row for row in record["sweeps"] if "ms" in row]
    sizes: dict[tuple[int, int], list[Any]] = {}
    for row in rows:
        sizes.setdefault((row["context"], row["batch"]), []).append(row)
    most = max(sizes.values(), key=len, default=[])
    if len(most) < 2:
        return []
    return [
        {"chosen": row["topk"], "ms": round(row["ms"][part], 5), "part": part}
        for row in most
        for part in ("indexer", "selection", "sparse attention", "sparse layer")
    ]


def selection_chart(values: Values) -> alt.Chart:
    """Return lines over the size."""
    return lines(values, "chosen", "tokens chosen", "part", "part")


def model_values(record: Record) -> Values:
    """Return a step of decode by model, context and way."""
    rows = record["model"].get("contexts", {}).get("rows", ())
    return [
        {
            "context": row["context"],
            "ms": round(row["ms"], 4),
            "way": row["way"],
            "model": f"{row['model']} x {row['batch']}",
        }
        for row in rows
        if row["ms"] and row["way"] in ("sparse", "dense, kernel", "dense, products")
    ]


def model_chart(values: Values) -> alt.Chart:
    """Return lines over the context."""
    return lines(values, "context", "tokens of context", "model", "way")


def dense_of(ms: Mapping[str, float]) -> float:
    """Return the quickest dense way."""
    return min(value for name, value in ms.items() if name.startswith("dense"))


def lines(values: Values, x: str, title: str, colour: str, dash: str) -> alt.Chart:
    """Return lines on logarithmic axes."""
    scale = alt.Scale(type="log", base=2, nice=False)
    legend = alt.Legend(symbolType="stroke", symbolSize=500, symbolStrokeWidth=2, labelLimit=260)
    plain = alt.Legend(symbolType="stroke", symbolSize=500, symbolStrokeWidth=2, symbolStrokeColor="#555c66")
    encoded = {
        "x": alt.X(f"{x}:Q", title=title, scale=scale),
        "y": alt.Y("ms:Q", title="ms", scale=alt.Scale(type="log")),
        "color": alt.Color(f"{colour}:N", title=None, sort=None, legend=legend),
        "strokeDash": alt.StrokeDash(f"{dash}:N", title=None, sort=None, legend=legend if dash == colour else plain),
    }
    chart = (
        alt.Chart(alt.InlineData(values=values))
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=30))
        .encode(**encoded)
    )
    return chart.properties(width=440, height=280)


CHARTS: dict[str, tuple[Callable[[Record], Values], Callable[[Values], alt.Chart]]] = {
    "operators": (operator_values, operator_chart),
    "contexts": (context_values, context_chart),
    "selection": (selection_values, selection_chart),
    "models": (model_values, model_chart),
}


def mark_of(name: str, record: Record) -> str:
    """Return the first line of a chart's file; nothing where the record has no data for it."""
    values = CHARTS[name][0](record)
    return f"<!-- {name}: {hash_json(values)} -->" if values else ""


def write_charts(record: Record, beside: Path) -> None:
    """Write those charts that there is data for, and take away old ones that there is none for."""
    for name, (values_of, chart_of) in CHARTS.items():
        path = beside.with_name(f"{beside.stem}-{name}.svg")
        values = values_of(record)
        if not values:
            path.unlink(missing_ok=True)
            continue
        chart = chart_of(values).properties(background="white", padding=8)
        path.write_text(f"{mark_of(name, record)}\n{vl_convert.vegalite_to_svg(chart.to_dict())}\n", encoding="utf-8")

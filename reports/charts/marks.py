"""What all charts share: marks that can be pointed at, axes in the page's own colour, and the SVG as it goes inline.

A chart is one static drawing. Each mark in it says what it stands for; the page's script reads that for tooltips and
filters, screen readers read it too, and on paper the drawing is the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

import altair as alt
import vl_convert

from day0.records import Verdict
from day0.reports.clean import clean
from day0.reports.tables import Table

__all__ = ["COLOURS", "TONES", "Drawing", "Key", "Layers", "Mark", "draw", "log_domain", "log_scale", "numbered", "xy"]

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

TONES: dict[str, str] = {"good": "#2f8f5b", "bad": "#d03a45", "wait": "#8a7a1f"}
"""Likewise, for what passed, what failed and what is neither."""

Layers = alt.LayerChart | alt.FacetChart
"""A chart of several layers, as altair types it once it has a size."""

_SVG = "{http://www.w3.org/2000/svg}"
_NUMBER = re.compile(r"([mp])(\d{1,6})\Z")
_FONT = "system-ui, sans-serif"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """What one mark stands for. `groups` are words of ours by which the page can leave it out."""

    operator: str
    groups: tuple[str, ...]
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """A line of a chart's legend; `shape` is the mark's where colour alone does not tell."""

    group: str
    colour: str
    title: str
    shape: str = "square"


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """A chart in its page: the drawing, what its colours mean, and the same in figures."""

    name: str
    title: str
    svg: str
    keys: tuple[Key, ...]
    table: Table
    notes: tuple[str, ...] = ()
    operators: bool = field(default=True)
    """Whether marks belong to operators, so that they can be searched for."""


def numbered(marks: Sequence[Mark]) -> list[dict[str, Any]]:
    """Return the beginning of one data row for each mark; `draw` finds the marks again by it.

    `part` is for lines that belong to a mark and come and go with it.
    """
    return [{"mark": f"m{number}", "part": f"p{number}"} for number in range(len(marks))]


def log_domain(values: Iterable[float]) -> tuple[float, float]:
    """Return the whole decades around some positive values, or one decade where there is none."""
    found = [value for value in values if value > 0.0]
    if not found:
        return 0.1, 1.0
    low, high = 10.0 ** _floor(min(found)), 10.0 ** (_floor(max(found)) + 1)
    return low, high


def _floor(value: float) -> int:
    """Return the decade of a positive number; by text, since a logarithm may land a hair below a whole number."""
    return int(f"{value:.6e}".rpartition("e")[2])


def log_scale(low: float, high: float) -> alt.Scale:
    """Return a logarithmic scale that ends where it is told to."""
    return alt.Scale(type="log", domain=[low, high], nice=False)


def xy(field_name: str, title: str, low: float, high: float, *, channel: type[alt.X | alt.Y]) -> Any:
    """Return a logarithmic axis with a label for each decade, or for fewer where there are many."""
    first, last = _floor(low), _floor(high)
    step = max(1, (last - first + 7) // 8)
    ticks = [10.0**power for power in range(first, last + 1, step)]
    axis = alt.Axis(values=ticks, format="~e", title=title)
    return channel(f"{field_name}:Q", scale=log_scale(low, high), axis=axis)


def draw(chart: Layers, marks: Sequence[Mark], label: str) -> str:
    """Return the drawing as an SVG element without references to anything outside.

    The numbers of `numbered` become what the marks stand for. Texts and lines take `currentColor`, so that the same
    drawing serves light and dark pages and paper.
    """
    styled = (
        chart.configure(background="transparent", padding=2, font=_FONT)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor="currentColor", titleColor="currentColor", domainColor="currentColor", tickColor="currentColor",
            gridColor="currentColor", gridOpacity=0.14, labelFontSize=12, titleFontSize=12, titleFontWeight="normal",
            titlePadding=10,
        )
    )  # fmt: skip
    # Not validated, which takes as long as the drawing: vl-convert refuses what it cannot draw.
    plain = styled.to_dict(validate=False)
    # Our own drawing, whose texts vl-convert escapes.
    root = ElementTree.fromstring(vl_convert.vegalite_to_svg(plain))  # noqa: S314
    for one in root.iter():
        one.tag = one.tag.removeprefix(_SVG)
        _name(one, marks)
    box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update({"class": "chart", "role": "img", "aria-label": clean(label), "viewBox": box})
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _name(element: ElementTree.Element, marks: Sequence[Mark]) -> None:
    """Say on a mark what it stands for. Whatever else vega wrote for readers of the screen is its own doing."""
    if element.get("aria-roledescription") is None:
        return
    found = _NUMBER.match(element.get("aria-label", ""))
    if found is None or int(found[2]) >= len(marks):
        return
    mark = marks[int(found[2])]
    name = clean(mark.operator, limit=120)
    element.set("data-groups", " ".join(mark.groups))
    if found[1] == "p":
        element.set("data-part", name)
        del element.attrib["aria-label"]
        return
    element.set("data-mark", name)
    element.set("aria-label", f"{name}: {clean(mark.text)}")

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from day0.reports.bundle import Bundle
from day0.reports.chart import COLOURS, WIDTH, draw
from day0.reports.html import render_html
from day0.reports.summarise import summarise

RUNS = ["good", "failing", "incomplete", "hostile"]
VOID = frozenset({"meta", "link", "br"})


class Page(HTMLParser):
    """Elements with their attributes, and the text that a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(params=RUNS)
def page(request: pytest.FixtureRequest) -> Page:
    return Page(render_html(request.getfixturevalue(request.param)))


def test_the_page_is_well_formed_and_has_no_code_in_it(page: Page) -> None:
    assert page.open == []
    names = {name for name, _ in page.elements}
    assert not names & {"script", "iframe", "img", "object", "embed", "form", "base", "foreignobject", "image", "use"}
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_nothing_is_fetched(page: Page) -> None:
    for _, attributes in page.elements:
        for name in ("href", "src", "srcset", "xlink:href", "action", "poster", "data"):
            assert attributes.get(name) in (None, "#main", "data:,")
    css = (resources.files("day0.reports") / "templates" / "report.css").read_text(encoding="utf-8")
    assert not re.search(r"url\(|@import|@font-face", css)
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert str(policy).startswith("default-src 'none'")


def test_headings_tables_and_landmarks_are_accessible(page: Page) -> None:
    levels = [int(name[1]) for name, _ in page.elements if re.fullmatch(r"h[1-6]", name)]
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert len(page.all("caption")) == len(page.all("table")) > 0
    assert all(cell.get("scope") in ("col", "row") for cell in page.all("th"))
    assert len(page.all("main")) == 1
    ids = [str(attributes["id"]) for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {str(one["aria-labelledby"]) for one in page.all("section")} <= set(ids)
    assert page.all("html")[0]["lang"] == "en"
    assert all(svg.get("aria-label") for svg in page.all("svg"))


def test_the_verdict_is_said_in_words(good: Bundle, failing: Bundle) -> None:
    assert "All 8 signatures".lower() in Page(render_html(good)).text.lower()
    text = Page(render_html(failing)).text
    assert "Not ready" in text
    assert "aten::histc (int32) has no implementation: the profile lacks aten::histc" in text


def test_an_incomplete_run_says_what_to_run(incomplete: Bundle) -> None:
    text = Page(render_html(incomplete)).text
    assert "day0 register --run RUN" in text
    assert "RUN stands for this run" in text


def test_hostile_names_are_shown_as_text(hostile: Bundle) -> None:
    html = render_html(hostile)
    assert all(char == "\n" or char.isprintable() for char in html)
    text = Page(html).text
    assert "<script>alert(1)</script>" in text
    assert "{{ 7 * 7 }}" in text
    assert "javascript:alert(1)" in text


def test_a_large_run_gives_a_small_page(large: Bundle) -> None:
    html = render_html(large)
    assert len(html) < 400_000
    assert "and 4,960 more in inventory.json" in html


def test_the_same_records_give_the_same_page(good: Bundle) -> None:
    assert render_html(good) == render_html(good)


def test_the_chart_has_one_mark_for_each_verdict_of_an_operator(good: Bundle) -> None:
    root = ElementTree.fromstring(draw(summarise(good)))  # noqa: S314 - our own drawing
    marks = [one for one in root.iter("path") if one.get("aria-roledescription") == "bar"]
    assert [mark.get("fill") for mark in marks][:2] == [COLOURS["native"], COLOURS["replaced"]]
    assert len(marks) == 8
    assert all(text.get("fill") == "currentColor" for text in root.iter("text"))
    # Nothing sticks out: a bar beyond the scale would widen the drawing.
    assert str(root.get("viewBox")).split()[2] == str(WIDTH + 4)


def test_the_chart_gathers_the_rest_in_one_bar(large: Bundle) -> None:
    root = ElementTree.fromstring(draw(summarise(large)))  # noqa: S314 - our own drawing
    texts = [text.text for text in root.iter("text")]
    assert len(texts) == 2 * 13
    assert "4,988 other operators" in texts
    # The rest has all three verdicts, one after the other.
    labels = [str(one.get("aria-label")) for one in root.iter("path") if one.get("aria-roledescription") == "bar"]
    assert [label.split()[-1] for label in labels[12:]] == ["native", "decomposes", "missing"]
    paths = [str(one.get("d")) for one in root.iter("path") if one.get("aria-roledescription") == "bar"][12:]
    starts = [float(re.findall(r"[\d.]+", path)[0]) for path in paths]
    assert starts == sorted(starts)
    assert starts[1] == pytest.approx(WIDTH / 3, abs=3)


def test_the_chart_is_harmless_with_hostile_names(hostile: Bundle) -> None:
    root = ElementTree.fromstring(draw(summarise(hostile)))  # noqa: S314 - our own drawing
    assert {one.tag for one in root.iter()} <= {"svg", "g", "path", "text", "line", "rect", "defs", "clipPath"}


def test_without_an_inventory_there_is_no_chart(incomplete: Bundle) -> None:
    assert draw(summarise(replace(incomplete, inventory=None))) == ""
    assert Page(render_html(replace(incomplete, inventory=None))).all("svg") == []


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.2."""
    full = colour if len(colour) == 7 else "#" + "".join(char * 2 for char in colour[1:])
    parts = [int(full[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio, WCAG 2.2."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def themes() -> list[dict[str, str]]:
    css = (resources.files("day0.reports") / "templates" / "report.css").read_text(encoding="utf-8")
    roots = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)
    return [dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6});", root)) for root in roots]


def test_texts_have_enough_contrast_in_light_dark_and_print() -> None:
    light, dark, paper = themes()
    for theme in (light, dark, {**light, **paper}):
        for text in ("ink", "soft", "link"):
            for ground in ("page", "card", "wash"):
                assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground)
        for tone in ("good", "bad", "wait"):
            for ground in (f"{tone}-wash", "card", "page"):
                assert contrast(theme[tone], theme[ground]) >= 4.5, (tone, ground)
            assert contrast(theme["ink"], theme[f"{tone}-wash"]) >= 4.5


def test_marks_have_enough_contrast_on_both_cards() -> None:
    for theme in themes():
        for verdict, colour in COLOURS.items():
            assert contrast(colour, theme["card"]) >= 3.0, (verdict, theme["card"])

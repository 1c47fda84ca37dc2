from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from day0.reports.bundle import Bundle
from day0.reports.charts.marks import COLOURS, TONES
from day0.reports.charts.time_shares import WIDTH, draw_shares
from day0.reports.html import render_html
from day0.reports.summarise import summarise
from tests.reports.conftest import Pages

RUNS = ["good", "failing", "incomplete", "hostile", "beside", "traced"]
VOID = frozenset({"meta", "link", "br"})


class Page(HTMLParser):
    """Elements with their attributes, and the text that a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif "style" not in self.open:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def ours(name: str) -> str:
    return (resources.files("day0.reports") / "templates" / name).read_text(encoding="utf-8")


def harmless(address: str | None, ids: set[str]) -> bool:
    """Whether an address leads nowhere, to a part of the page, or to a file of the run folder."""
    if address is None or address == "data:,":
        return True
    if address.startswith("#"):
        return address[1:] in ids
    return re.fullmatch(r"\.\./(?!\.)[\w%.~-]+(/(?!\.)[\w%.~-]+)*", address) is not None


@pytest.fixture(params=RUNS)
def page(request: pytest.FixtureRequest, page_of: Pages) -> Page:
    return Page(page_of(request.param))


def test_the_page_is_well_formed_and_has_no_code_but_our_own(page: Page) -> None:
    assert page.open == []
    names = {name for name, _ in page.elements}
    kinds = [one.get("type") for one in page.all("script")]
    assert kinds == ["application/json", "text/plain", None]
    assert page.scripts[2] == ours("report.js")
    assert not names & {"iframe", "img", "object", "embed", "form", "base", "foreignobject", "image", "use"}
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_nothing_is_fetched(page: Page) -> None:
    ids = {str(attributes["id"]) for _, attributes in page.elements if "id" in attributes}
    for _, attributes in page.elements:
        for name in ("href", "src", "srcset", "xlink:href", "action", "poster", "data"):
            assert harmless(attributes.get(name), ids), attributes
    assert not re.search(r"url\(|@import|@font-face", ours("report.css"))
    assert not any("style" in attributes for _, attributes in page.elements)


def test_the_policy_names_the_one_script_by_its_hash(page: Page) -> None:
    policy = str(next(one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy"))
    digest = base64.b64encode(hashlib.sha256(page.scripts[2].encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "trusted-types 'none'" in policy


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


def test_the_verdict_is_said_in_words(page_of: Pages) -> None:
    assert "all 8 signatures" in Page(page_of("good")).text
    text = Page(page_of("failing")).text
    assert "Not ready" in text
    assert "aten::histc (int32) has no implementation: the profile lacks aten::histc" in text


def test_an_incomplete_run_says_what_to_run(page_of: Pages) -> None:
    text = Page(page_of("incomplete")).text
    assert "day0 register --run RUN" in text
    assert "RUN stands for this run" in text


def test_hostile_names_are_shown_as_text(page_of: Pages) -> None:
    html = page_of("hostile")
    assert all(char == "\n" or char.isprintable() for char in html)
    text = Page(html).text
    assert "<script>alert(1)</script>" in text
    assert "{{ 7 * 7 }}" in text
    assert "javascript:alert(1)" in text


def test_a_run_of_a_trace_alone_says_what_every_part_waits_for(page_of: Pages) -> None:
    page = Page(page_of("traced"))
    assert page.all("svg") == []
    for stage in ("inventory", "check", "canary"):
        assert f"day0 {stage} --run RUN" in page.text
    for text in ("Not known yet", "day0 fit --run RUN", "No record says how long anything takes yet"):
        assert text in page.text


def test_what_stands_beside_the_stages_is_told(page_of: Pages) -> None:
    text = Page(page_of("beside")).text
    for said in (
        "it fits on 24 cards of 80.0 GiB (tp=8 ep=24 pp=1 dp=3) with 512.0 MiB a card left",
        "7 sequences and 40 tokens in 9 steps; not decided in so short a time: host_growth",
        "1 prompt equal, 0 other within rounding, 1 other; 0 of 1 gate kept",
        "2 ranks fail",
        "2 ms",  # a token, from the stage that decodes one sequence
        "other bits in more rows x",
        "0.7 (0.6 to 0.8)",
    ):
        assert said in text, said


def test_evidence_is_linked_below_the_run_folder(page_of: Pages) -> None:
    links = {str(one["href"]) for one in Page(page_of("beside")).all("a") if str(one["href"]).startswith("..")}
    assert {"../evidence/one%20layer", "../trace.json", "../ops.lock"} <= links
    assert "../evidence/repro/1" in {one.get("href") for one in Page(page_of("failing")).all("a")}
    assert not any("x" in str(one["href"]) for one in Page(page_of("hostile")).all("a") if "/x" in str(one["href"]))
    assert "(refused: not a path below the run folder)" in Page(page_of("hostile")).text


def rows_of(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(page.scripts[1])))
    return found


def test_rows_as_data_cannot_leave_their_element(page: Page) -> None:
    assert re.fullmatch(r"[A-Za-z0-9+/=]*", page.scripts[1])
    assert not re.search(r"[<>&]", page.scripts[0])
    texts = rows_of(page)["words"]
    assert all(text.isprintable() for text in texts)


def test_the_page_carries_the_rows_that_it_does_not_show(page_of: Pages) -> None:
    rows = rows_of(Page(page_of("large")))
    word, table = rows["words"], rows["tables"]["every-case-worst-first"]
    assert len(table["rows"]) + 40 == 5000
    assert table["over"] == 0
    # The failed ones come first, 2,500 of them.
    assert [word[table["rows"][n][3]] for n in (0, 2459, 2460)] == ["fail", "fail", "pass"]


def test_a_large_run_gives_a_small_page(page_of: Pages) -> None:
    html = page_of("large")
    assert len(html) < 700_000
    assert "and 4,960 more in inventory.json" in html


def test_the_same_records_give_the_same_page(beside: Bundle, page_of: Pages) -> None:
    assert render_html(beside) == page_of("beside")


def svg_of(bundle: Bundle) -> str:
    drawing = draw_shares(summarise(bundle))
    assert drawing is not None
    return drawing.svg


def test_the_chart_has_one_mark_for_each_verdict_of_an_operator(good: Bundle) -> None:
    root = ElementTree.fromstring(svg_of(good))  # noqa: S314 - our own drawing
    marks = [one for one in root.iter("path") if one.get("aria-roledescription") == "bar"]
    assert [mark.get("fill") for mark in marks][:2] == [COLOURS["native"], COLOURS["replaced"]]
    assert len(marks) == 8
    assert all(text.get("fill") == "currentColor" for text in root.iter("text"))
    # Nothing sticks out: a bar beyond the scale would widen the drawing.
    assert str(root.get("viewBox")).split()[2] == str(WIDTH + 4)


def test_the_chart_gathers_the_rest_in_one_bar(large: Bundle) -> None:
    root = ElementTree.fromstring(svg_of(large))  # noqa: S314 - our own drawing
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
    root = ElementTree.fromstring(svg_of(hostile))  # noqa: S314 - our own drawing
    assert {one.tag for one in root.iter()} <= {"svg", "g", "path", "text", "line", "rect", "defs", "clipPath"}


def test_without_an_inventory_there_is_no_chart(incomplete: Bundle) -> None:
    assert draw_shares(summarise(replace(incomplete, inventory=None))) is None


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
    roots = re.findall(r":root \{(.*?)\}", ours("report.css"), flags=re.DOTALL)
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
        for verdict, colour in [*COLOURS.items(), *TONES.items()]:
            assert contrast(colour, theme["card"]) >= 3.0, (verdict, theme["card"])

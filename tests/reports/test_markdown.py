from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from day0.reports.bundle import Bundle
from day0.reports.clean import clean
from day0.reports.markdown import render_markdown
from day0.reports.mdtext import code, prose, table_lines

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
# What a renderer may make of our own structure; anything else came out of a name.
OWN = frozenset(
    ["h1", "h2", "h3", "p", "strong", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "code", "a"]
)


def shown(markdown: str) -> str:
    """The text that a reader sees, with all markup gone."""
    text = re.sub(r"<[^>]*>", "", PARSER.render(markdown))
    for entity, char in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        text = text.replace(entity, char)
    return text


MARKUP = st.text(st.sampled_from(list("\\`*_[]<>|~$&#+-=.!:@/() \tab1{}\"'")), max_size=24)


@given(MARKUP | st.text(max_size=24))
@example("<b>x</b>")
@example("1. one")
@example("a `b` ``c")
@example("[x](http://y)")
@example("&amp;")
@example("_a_ *b* ~~c~~")
@example("\\`aten::x`")
@settings(deadline=None, max_examples=300)
def test_prose_shows_as_it_is(raw: str) -> None:
    text = clean(raw)
    assert shown(f"- {prose(text)}\n").strip() == text
    assert set(re.findall(r"<([a-z0-9]+)", PARSER.render(f"- {prose(text)}\n"))) <= {"ul", "li", "code"}


@given(MARKUP)
@settings(deadline=None, max_examples=300)
def test_code_in_a_table_shows_as_it_is(raw: str) -> None:
    text = clean(raw)
    lines = table_lines(["a", "b"], [[code(text, in_table=True), "x"]], [False, True])
    html = PARSER.render("\n".join(lines))
    assert html.count("<td") == 2
    assert set(re.findall(r"<([a-z0-9]+)", html)) <= OWN


def test_tables_line_up_raw() -> None:
    lines = table_lines(["name", "n"], [["aten::mm", "1"], ["模型", "1,000"]], [False, True])
    assert lines == [
        "| name     |     n |",
        "| -------- | ----: |",
        "| aten::mm |     1 |",
        "| 模型     | 1,000 |",
    ]


def test_the_summary_comes_first(failing: Bundle) -> None:
    text = render_markdown(failing)
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert heads == [
        "# toy-on-sim: toy on sim",
        "## What to do next",
        "## The five stages",
        "## Operators",
        "## Trace",
        "## Numerics",
        "## Canary",
        "## Performance",
        "## Fit, soak, server, ranks",
        "## Environment and evidence",
        "## Glossary",
    ]
    assert text.splitlines()[2].startswith("**✗ Not ready**: register: 1 gap stays open")
    assert "refused cpu_fallback: the plan says fallback: none" in text
    assert "worst at `[1, 7]`: 0.5, expected 0.25" in text
    assert "| `one_layer` | `worst_error <= 0.01` |   0.3 | ✗ fail |" in text


def test_an_incomplete_run_says_what_to_run(incomplete: Bundle) -> None:
    text = render_markdown(incomplete)
    assert "This report is incomplete." in text
    assert "- register: `day0 register --run RUN`" in text
    assert "RUN stands for this run's folder." in text


def test_a_good_run_is_ready_and_stable(good: Bundle) -> None:
    text = render_markdown(good)
    assert "**✓ Ready**: all 8 signatures have an implementation on sim" in text
    assert "No gap is left open." in text
    assert text == render_markdown(good)
    assert not any(line != line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("run", ["good", "failing", "incomplete", "hostile"])
def test_names_stay_text(run: str, request: pytest.FixtureRequest) -> None:
    text = render_markdown(request.getfixturevalue(run))
    assert all(char == "\n" or char.isprintable() for char in text)
    html = PARSER.render(text)
    assert set(re.findall(r"<([a-z0-9]+)", html)) <= OWN
    assert all(re.fullmatch(r"\.\./[\w%.~/-]+", address) for address in re.findall(r'href="([^"]*)"', html))
    # Dialects differ in what a backslash escapes: outside of code there is no `<` at all.
    assert "<" not in re.sub(r"(`+).*?\1", "", text)


def test_long_tables_are_cut_and_say_so(large: Bundle) -> None:
    text = render_markdown(large)
    assert len(text) < 100_000
    assert "… and 4,960 more in inventory.json" in text

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from day0.reports.clean import LIMIT, clean, path_below


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aten::topk", "aten::topk"),
        ("\x1b[31mred", "�[31mred"),
        ("nul\0byte", "nul�byte"),
        ("\u202egnp.exe", "�gnp.exe"),
        ("zero\u200bwidth", "zero�width"),
        ("\ud800", "�"),
        ("two\r\n\tlines\u2028more", "two lines more"),
        (" 模型 ", "模型"),
        (1.5, "1.5"),
    ],
)
def test_unprintable_characters_are_replaced(text: object, expected: str) -> None:
    assert clean(text) == expected


def test_long_text_keeps_both_ends() -> None:
    text = clean("start " + "x" * 1_000_000 + " end")
    assert len(text) == LIMIT
    assert text.startswith("start ")
    assert text.endswith(" end")
    assert clean("x" * LIMIT) == "x" * LIMIT


@given(st.text(st.characters(), max_size=60))
def test_clean_text_is_printable_encodable_and_xml(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.isprintable()
    assert clean(cleaned) == cleaned
    element = ElementTree.Element("a", b=cleaned)
    element.text = cleaned
    back = ElementTree.fromstring(ElementTree.tostring(element, encoding="utf-8"))  # noqa: S314 - written a line above
    assert (back.get("b"), back.text or "") == (cleaned, cleaned)


@pytest.mark.parametrize("path", ["../../x", "/etc/passwd", "a/../../b", "C:\\x", "a\\..\\..\\b", "\\\\host\\share"])
def test_paths_out_of_the_run_folder_are_refused(path: str) -> None:
    assert path_below(path) == "(refused: not a path below the run folder)"


@pytest.mark.parametrize("path", ["", "evidence/repro/1", "a..b/c"])
def test_paths_below_the_run_folder_are_kept(path: str) -> None:
    assert path_below(path) == path

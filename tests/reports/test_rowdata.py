from __future__ import annotations

import base64
import gzip
import json
import random
from typing import Any

from day0.reports import rowdata
from day0.reports.clean import REFUSED
from day0.reports.links import Link, linked
from day0.reports.rowdata import PageRows
from day0.reports.tables import Table, make_table


def table(caption: str, texts: list[str]) -> Table:
    return make_table(caption, "name:code | where:notes", texts, lambda one: (one, (linked("at", one),)), most=1)


def read(rows: PageRows) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(rows.text())))
    return found


def test_a_text_stands_once_and_a_link_is_a_pair() -> None:
    rows = PageRows()
    rows.add(table("All names", ["shown", "a/b c", "a/b c"]))
    found = read(rows)
    assert found["words"] == ["a/b c", "at", "../a/b%20c"]
    assert found["tables"] == {"all-names": {"rows": [[0, [[1, 2]]], [0, [[1, 2]]]], "over": 0}}


def test_without_room_rows_are_counted_as_left_out() -> None:
    rows = PageRows(budget=100)
    rows.add(table("All names", [f"name {n}" for n in range(101)]))
    found = read(rows)["tables"]["all-names"]
    assert 0 < len(found["rows"]) < 100
    assert len(found["rows"]) + found["over"] == 100


def test_what_does_not_pack_well_is_left_out_the_largest_table_first(monkeypatch: Any) -> None:
    dice = random.Random(0)  # noqa: S311 - no secret
    monkeypatch.setattr(rowdata, "MOST", 3000)
    rows = PageRows()
    rows.add(table("Few", ["shown", "kept"]))
    rows.add(table("Many", [dice.randbytes(20).hex() for _ in range(500)]))
    text = rows.text()
    assert len(text) <= 3000
    found = json.loads(gzip.decompress(base64.b64decode(text)))
    assert found["tables"]["many"] == {"rows": [], "over": 499}
    assert [found["words"][n] for n in (found["tables"]["few"]["rows"][0][0],)] == ["kept"]


def test_the_same_rows_are_the_same_text() -> None:
    texts = []
    for _ in range(2):
        rows = PageRows()
        rows.add(table("All names", ["a", "b", "c"]))
        texts.append(rows.text())
    assert texts[0] == texts[1]
    assert base64.b64decode(texts[0])[4:8] == bytes(4), "gzip notes no time"


def test_a_link_leads_below_the_run_folder_or_is_a_text() -> None:
    assert linked("evidence", "evidence/a b") == Link(label="evidence", path="evidence/a b")
    assert linked("evidence", "") == ""
    assert linked("evidence", REFUSED) == f"evidence: {REFUSED}"
    for path in ("/etc/passwd", "../x", "a/../../x", "C:\\x", "a//b", "./a", "x\x1b[31m", "a\u202eb"):
        assert isinstance(linked("evidence", path), str), path
    assert Link(label="x", path="javascript:alert(1)").href == "../javascript%3Aalert%281%29"
    assert Link(label="x", path="%2e%2e/x?y#z").href == "../%252e%252e/x%3Fy%23z"

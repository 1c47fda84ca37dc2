from __future__ import annotations

import json
from dataclasses import replace

from day0.hashing import hash_json
from day0.reports.bundle import Bundle
from day0.reports.jsonreport import render_json
from day0.reports.summary import Summary


def test_the_value_is_strict_json_and_reads_back(failing: Bundle) -> None:
    assert failing.numerics is not None
    cases = list(failing.numerics.cases)
    cases[3] = cases[3].model_copy(update={"error": float("inf")})
    cases[4] = cases[4].model_copy(update={"status": "fail", "error": float("nan"), "limit": 1.0})
    value = render_json(replace(failing, numerics=failing.numerics.model_copy(update={"cases": tuple(cases)})))
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    back = json.loads(text)
    assert back["schema"] == "day0.report/1"
    assert back["sha256"] == hash_json(back["body"])
    summary = Summary.model_validate(back["body"])
    assert not summary.can_run
    assert {str(case.error) for case in summary.failures} == {"None", "inf", "nan"}


def test_the_same_records_give_the_same_value(good: Bundle) -> None:
    assert json.dumps(render_json(good)) == json.dumps(render_json(good))


def test_hostile_names_do_not_reach_a_terminal(hostile: Bundle) -> None:
    text = json.dumps(render_json(hostile), ensure_ascii=False, allow_nan=False)
    assert text.isprintable()
    text.encode()

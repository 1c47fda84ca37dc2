from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from day0.records import CaseStatus
from day0.reports.bundle import Bundle
from day0.reports.junit import render_junit
from day0.reports.summarise import summarise

RESULTS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def parse(bundle: Bundle) -> ElementTree.Element:
    return ElementTree.fromstring(render_junit(bundle).encode())  # noqa: S314 - our own text


def suites(bundle: Bundle) -> dict[str, ElementTree.Element]:
    return {str(suite.get("name")).removeprefix("day0."): suite for suite in parse(bundle)}


@pytest.mark.parametrize("run", ["good", "failing", "incomplete", "hostile"])
def test_counts_are_those_of_the_testcases(run: str, request: pytest.FixtureRequest) -> None:
    root = parse(request.getfixturevalue(run))
    for element in (root, *root):
        assert int(str(element.get("tests"))) == len(list(element.iter("testcase")))
        for attribute, tag in RESULTS.items():
            assert int(str(element.get(attribute))) == len(list(element.iter(tag)))


@pytest.mark.parametrize("run", ["good", "failing", "incomplete", "hostile"])
def test_a_suite_is_red_where_its_stage_or_one_before_it_is(run: str, request: pytest.FixtureRequest) -> None:
    bundle = request.getfixturevalue(run)
    found = suites(bundle)
    summary = summarise(bundle)
    red = {name: suite.get("failures") != "0" or suite.get("errors") != "0" for name, suite in found.items()}
    for stage in summary.stages:
        waits = stage.status == "missing" and bool(stage.blocked_by)
        assert red[stage.name] == (stage.status != "pass" and not waits)
    assert any(red.values()) != summary.can_run


def test_a_failing_run(failing: Bundle) -> None:
    found = suites(failing)
    figures = {name: tuple(int(str(suite.get(key))) for key in ("tests", *RESULTS)) for name, suite in found.items()}
    assert figures == {
        "trace": (2, 0, 0, 0),
        "inventory": (3, 0, 0, 1),
        "register": (3, 1, 0, 0),
        "check": (8, 1, 1, 1),
        "canary": (3, 1, 0, 1),
    }
    gap = found["register"].find(".//failure")
    assert gap is not None
    assert gap.get("message") == "the profile lacks aten::histc"
    assert gap.text == "refused cpu_fallback: the plan says fallback: none"


def test_an_incomplete_run_is_not_green(incomplete: Bundle) -> None:
    found = suites(incomplete)
    error = found["register"].find(".//error")
    assert error is not None
    assert (error.get("type"), error.text) == ("missing", "make it with: day0 register --run RUN")
    assert found["check"].get("skipped") == "1"


@pytest.mark.parametrize(
    ("status", "tag"),
    [
        ("pass", None),
        ("fail", "failure"),
        ("undelegated", "failure"),
        ("xpass", "failure"),
        ("crashed", "error"),
        ("hung", "error"),
        ("fell_back", "skipped"),
        ("skipped", "skipped"),
        ("xfail", "skipped"),
    ],
)
def test_statuses_of_cases(good: Bundle, status: CaseStatus, tag: str | None) -> None:
    assert good.numerics is not None
    cases = (good.numerics.cases[0].model_copy(update={"status": status}), *good.numerics.cases[1:])
    bundle = replace(good, numerics=good.numerics.model_copy(update={"cases": cases}))
    first = suites(bundle)["check"].find("testcase")
    assert first is not None
    assert [child.tag for child in first if child.tag != "system-out"] == ([tag] if tag else [])


def test_a_stage_that_could_not_measure_is_an_error(failing: Bundle) -> None:
    assert failing.canary is not None
    stages = tuple(stage.model_copy(update={"gates": ()}) for stage in failing.canary.stages)
    found = suites(replace(failing, canary=failing.canary.model_copy(update={"stages": stages})))["canary"]
    assert (found.get("failures"), found.get("errors")) == ("0", "1")


def test_testcases_have_different_names(good: Bundle) -> None:
    names = [(case.get("classname"), case.get("name")) for case in parse(good).iter("testcase")]
    assert len(names) == len(set(names))


def test_hostile_names_are_text(hostile: Bundle) -> None:
    text = render_junit(hostile)
    assert all(char == "\n" or char.isprintable() for char in text)
    assert {element.tag for element in parse(hostile).iter()} <= {
        "testsuites",
        "testsuite",
        "testcase",
        "failure",
        "error",
        "skipped",
        "system-out",
    }
    assert any("<script>alert(1)</script>" in str(case.get("classname")) for case in parse(hostile).iter("testcase"))

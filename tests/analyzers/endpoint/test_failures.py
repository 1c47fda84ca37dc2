"""What goes wrong with some requests is counted under its own name, and the others are judged all the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from day0.errors import Day0Error
from day0.records import EndpointReport
from tests.analyzers.endpoint.broken import answer, broken, closed_port, silent, whole
from tests.analyzers.endpoint.conftest import LINES, Report
from tests.analyzers.endpoint.served import Service, serve

KEY = "sk-very-secret-0123456789"
SECOND = str(LINES[1]["prompt"])


def gate(found: EndpointReport, metric: str) -> str:
    return next(one.verdict for one in found.gates if one.metric == metric)


def test_a_prompt_that_breaks_the_server_fails_it(tiny: Path, report: Report) -> None:
    def trouble(body: dict[str, Any]) -> tuple[int, str] | None:
        return (500, f"index out of range, key {KEY}") if body["prompt"] == SECOND else None

    with serve(Service(folder=tiny, trouble=trouble)) as service:
        found = report(service.url, key=KEY)
    assert found.verdict == "failed"
    assert gate(found, "server_faults") == "failed"
    assert gate(found, "unanswered") == "successful"
    assert found.outcomes == {"answered": 8, "server_error": 4}
    assert [one.status for one in found.results] == ["pass", "unanswered", "pass"]
    assert {(one.prompt, one.round) for one in found.failures} == {
        ("two", name) for name in ("alone", "again", "together", "echo")
    }
    assert KEY not in found.model_dump_json()
    assert "[key]" in found.failures[0].detail


def test_what_nobody_answered_is_inconclusive_and_no_failure(tiny: Path, report: Report) -> None:
    def trouble(body: dict[str, Any]) -> tuple[int, str] | None:
        return (503, "loading") if body["prompt"] == SECOND else None

    with serve(Service(folder=tiny, trouble=trouble)) as service:
        found = report(service.url, retries=1)
    assert found.verdict == "inconclusive"
    assert found.reason == "unanswered is not known: 4 of 12 requests were not answered: 4 unavailable"
    assert found.outcomes == {"answered": 8, "unavailable": 8}
    assert found.results[1].status == "unanswered"
    assert not any(one.passed for one in found.gates if one.metric == "unanswered")


def test_what_is_answered_at_the_second_try_is_counted_and_passes(tiny: Path, report: Report) -> None:
    seen: Counter[str] = Counter()

    def trouble(body: dict[str, Any]) -> tuple[int, str] | None:
        seen[body["prompt"]] += 1
        return (429, "slow down") if body["prompt"] == SECOND and seen[SECOND] == 1 else None

    with serve(Service(folder=tiny, trouble=trouble)) as service:
        found = report(service.url, retries=1)
    assert found.verdict == "successful"
    assert found.outcomes == {"answered": 12, "rate_limited": 1}
    assert [(one.prompt, one.outcome, one.answered) for one in found.failures] == [("two", "rate_limited", True)]
    assert found.figures["retried"].value == 1.0


def test_a_round_that_fails_leaves_the_others(tiny: Path, report: Report) -> None:
    def trouble(body: dict[str, Any]) -> tuple[int, str] | None:
        return (500, "no streams today") if body.get("stream") else None

    with serve(Service(folder=tiny, trouble=trouble)) as service:
        found = report(service.url)
    assert found.outcomes == {"answered": 6, "server_error": 6}
    assert [one.status for one in found.results] == ["pass"] * 3
    assert "first_token_p50" not in found.figures


def test_a_server_that_dies_ends_the_round_and_every_request_is_counted(tiny: Path, report: Report) -> None:
    lines = tuple({"id": str(one), "prompt": "text", "max_tokens": 1} for one in range(9))
    seen: list[object] = []

    def trouble(body: dict[str, Any]) -> tuple[int, str] | None:
        seen.append(body)
        return (503, "gone") if len(seen) > 4 else None

    with serve(Service(folder=tiny, trouble=trouble)) as service:
        found = report(service.url, lines=lines)
    assert found.outcomes["unavailable"] == 5
    assert sum(found.outcomes.values()) == 4 * 9
    assert found.verdict == "inconclusive"


def test_a_round_that_always_fails_ends_alone(tiny: Path, report: Report) -> None:
    lines = tuple({"id": str(one), "prompt": "text", "max_tokens": 1} for one in range(7))

    def trouble(body: dict[str, Any]) -> tuple[int, str] | None:
        return (500, "no streams today") if body.get("stream") else None

    with serve(Service(folder=tiny, trouble=trouble, echo=False)) as service:
        found = report(service.url, lines=lines)
    # Those on their way when the last of patience went are answered for too.
    assert found.outcomes["answered"] == 7
    assert {one.round for one in found.failures} == {"alone", "together"}
    assert sum(found.outcomes.values()) == 21


def test_a_server_without_a_list_of_models_is_asked_by_name(tiny: Path, report: Report) -> None:
    service = Service(folder=tiny)
    service.listed = False
    with serve(service):
        with pytest.raises(Day0Error, match="does not say which models it has"):
            report(service.url)
        assert report(service.url, model="tiny").verdict == "successful"


def test_an_answer_without_the_logprobs_that_others_have_is_a_fault(tiny: Path, report: Report) -> None:
    service = Service(folder=tiny, echo=False)
    whole_logprobs = service.logprobs_of
    service.logprobs_of = lambda rows, body: None if body.get("prompt") == SECOND else whole_logprobs(rows, body)  # type: ignore[method-assign]
    with serve(service):
        found = report(service.url)
    assert found.outcomes == {"answered": 6, "no_logprobs": 3}
    assert gate(found, "server_faults") == "failed"


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (answer("{}", status="401 Unauthorized"), "the server wants another key (401)"),
        (answer("<html>", kind="text/html"), "the answer is a page, not JSON"),
        (answer('{"data": 3}'), "the answer is JSON of another form"),
        (answer(whole("x"), status="503 Service Unavailable"), "the server is not ready (502, 503 or 504)"),
        (silent, "there was no whole answer in time"),
    ],
)
def test_a_server_that_cannot_be_asked_at_all_is_refused(act: Any, words: str, report: Report) -> None:
    with broken([act]) as seen, pytest.raises(Day0Error) as caught:
        report(seen.url, seconds=2.0)
    assert caught.value.what == words
    assert caught.value.hint


def test_nothing_listens(report: Report) -> None:
    with pytest.raises(Day0Error, match="the connection was refused"):
        report(f"http://127.0.0.1:{closed_port()}")


def test_a_prompt_that_is_a_chat_is_not_asked_as_a_text(report: Report) -> None:
    lines: tuple[dict[str, object], ...] = ({"id": "a", "messages": [{"role": "user", "content": "hi"}]},)
    with pytest.raises(Day0Error, match="prompt 'a' is a chat"):
        report("http://127.0.0.1:9", lines=lines)

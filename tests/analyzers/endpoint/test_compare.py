"""Real servers, which compute with a real model, against a reference: the same passes, one changed weight fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from day0.errors import Day0Error
from day0.playbook import Gate
from day0.records import EndpointReport
from tests.analyzers.endpoint.conftest import LINES, Report
from tests.analyzers.endpoint.served import Service, serve
from tests.analyzers.endpoint.tiny import save_tiny

MANNERS: dict[str, dict[str, Any]] = {
    "ids and logprobs": {},
    "logprobs": {"ids": False},
    "text alone": {"ids": False, "logprobs": False},
}


def failed(found: EndpointReport) -> set[str]:
    return {one.metric for one in found.gates if one.verdict == "failed"}


@pytest.fixture(scope="module")
def wrong(changed: Path, report: Report) -> dict[str, EndpointReport]:
    """What is found of one changed weight, by what the server shows."""
    found = {}
    for manner, switches in MANNERS.items():
        with serve(Service(folder=changed, **switches)) as service:
            found[manner] = report(service.url)
    return found


@pytest.mark.parametrize(
    ("manner", "api"),
    [*((manner, "completions") for manner in MANNERS), ("ids and logprobs", "chat"), ("logprobs", "chat")],
)
def test_the_same_model_passes(manner: str, api: str, tiny: Path, report: Report) -> None:
    with serve(Service(folder=tiny, **MANNERS[manner])) as service:
        found = report(service.url, api=api)
    assert (found.verdict, found.reason) == ("successful", "")
    assert [one.status for one in found.results] == ["pass"] * 3
    assert {one.compared for one in found.results} == {"text" if manner == "text alone" else "tokens"}
    assert found.outcomes == {"answered": (12 if api == "completions" and manner != "text alone" else 9)}
    assert ("logprob_error_ratio" in found.left_out) == (manner == "text alone")
    assert found.figures["first_token_p50"].value is not None
    assert found.figures["throughput"].unit == "tokens/s"


@pytest.mark.parametrize("manner", MANNERS)
def test_one_changed_weight_fails_with_the_first_prompt_and_token(
    manner: str, wrong: dict[str, EndpointReport]
) -> None:
    found = wrong[manner]
    assert found.verdict == "failed"
    assert "unexplained_prompts" in failed(found)
    first = next(one for one in found.results if one.status == "fail")
    assert found.reason == first.reason
    assert found.reason.startswith(f"prompt {first.name!r}, token {first.position}: {first.got!r} instead of")
    assert first.margin is not None
    assert first.margin > first.explained
    assert first.got != first.expected
    assert first.text
    assert first.expected_text
    assert first.reproduce.startswith(f"curl -sS {found.endpoint}/completions ")
    assert ("logprob_error_ratio" in failed(found)) == (manner != "text alone")


def test_all_ways_to_know_the_tokens_name_the_same_place(wrong: dict[str, EndpointReport]) -> None:
    places = [[(one.name, one.position, one.got, one.expected) for one in found.results] for found in wrong.values()]
    assert places[0] == places[1]
    # Tokens after the first difference are known no more from a text.
    first = next(one for one in places[0] if one[1] is not None)
    assert first in places[2]


def test_shifted_logprobs_fail_though_all_tokens_are_the_same(tiny: Path, report: Report) -> None:
    with serve(Service(folder=tiny, lie=-0.01)) as service:
        found = report(service.url)
    assert failed(found) == {"logprob_error_ratio", "divergence_ratio", "prompt_logprob_error_ratio"}
    assert found.figures["logprob_error"].value == pytest.approx(0.01, rel=0.01)
    assert found.figures["logprob_error"].low is not None


def test_a_prompt_that_begins_twice_is_found(tiny: Path, report: Report) -> None:
    with serve(Service(folder=tiny, extra_bos=True, echo=False)) as service:
        found = report(service.url)
    assert "prompt_tokens_differ" in failed(found)
    one = found.results[0]
    assert (one.prompt_tokens or 0) - (one.reference_prompt_tokens or 0) == 1


def test_a_fault_among_other_requests_is_found_there(tiny: Path, report: Report) -> None:
    with serve(Service(folder=tiny, crowd_bug=50.0)) as service:
        found = report(service.url)
    assert "unexplained_in_batch" in failed(found)
    assert "unexplained_repeats" not in failed(found)
    assert "unexplained_prompts" not in failed(found)
    assert any("together" in one.differs for one in found.results)


def test_a_bfloat16_server_is_judged_by_what_bfloat16_costs(tmp_path: Path, report: Report) -> None:
    folder = save_tiny(tmp_path / "half", dtype=torch.bfloat16)
    with serve(Service(folder=folder)) as service:
        assert service.model.dtype == torch.bfloat16
        found = report(service.url, reference=folder)
    assert found.verdict == "successful", found.reason
    assert "float32 on the CPU" not in found.reference
    assert found.reference.endswith("in float32; yardstick bfloat16")


@pytest.mark.parametrize("logprobs", [True, False])
def test_two_servers_are_compared(logprobs: bool, tiny: Path, changed: Path, report: Report) -> None:
    with serve(Service(folder=tiny, logprobs=logprobs)) as right, serve(Service(folder=changed)) as wrong:
        same = report(right.url, against=right.url)
        found = report(wrong.url, against=right.url)
    assert found.verdict == "failed"
    assert same.verdict == "successful"
    assert found.reason.startswith("prompt '")
    assert f"tiny at {right.url}/v1" == found.reference


def test_no_key_goes_to_the_server_to_compare_with(tiny: Path, report: Report) -> None:
    with serve(Service(folder=tiny)) as one, serve(Service(folder=tiny)) as other:
        report(one.url, against=other.url, key="sk-secret-1")
    assert set(one.keys) == {"Bearer sk-secret-1"}
    assert set(other.keys) == {None}


def test_right_answers_are_compared_in_pairs(tiny: Path, report: Report) -> None:
    plain = {"prompt": "def tokenizer_of(text", "max_tokens": 6}
    with serve(Service(folder=tiny)) as service:
        text = report(service.url, lines=({"id": "0", **plain},)).results[0].text
        lines = tuple({"id": str(one), **plain, "answer": text if one % 2 else "no such text"} for one in range(4))
        found = report(service.url, lines=lines)
    assert found.figures["accuracy"].value == found.figures["reference_accuracy"].value == 0.5
    assert found.figures["accuracy_drop"].value == 0.0
    assert [one.right for one in found.results] == [False, True, False, True]


def test_a_gate_of_the_user_takes_the_place_of_the_default(tiny: Path, report: Report) -> None:
    gates = (
        Gate(metric="logprob_error_ratio", rule="<=", limit=1e-9),
        Gate(metric="first_token_p95", rule="<=", limit=1e4),
    )
    with serve(Service(folder=tiny)) as service:
        found = report(service.url, gates=gates)
    assert failed(found) == {"logprob_error_ratio"}
    assert sum(one.metric == "logprob_error_ratio" for one in found.gates) == 1
    assert next(one for one in found.gates if one.metric == "first_token_p95").verdict == "successful"


def test_a_reference_with_another_tokenizer_is_refused(tiny: Path, tmp_path: Path, report: Report) -> None:
    other = save_tiny(tmp_path / "other", text="0123456789 abcdefghijklmnopqrstuvwxyz ()_" * 20, vocabulary=60)
    with serve(Service(folder=tiny, ids=False)) as service, pytest.raises(Day0Error) as caught:
        report(service.url, reference=other)
    assert "another model: most of the server's tokens are not in the reference's vocabulary" in caught.value.what
    with serve(Service(folder=tiny)) as service, pytest.raises(Day0Error, match="the server gives token id"):
        report(service.url, reference=other)
    with serve(Service(folder=tiny, ids=False, logprobs=False)) as service, pytest.raises(Day0Error) as caught:
        report(service.url, reference=other)
    assert "counts other prompt tokens" in caught.value.what
    assert caught.value.facts[0].startswith("prompt 'one':")


def test_a_reference_of_another_size_is_refused_before_anything_is_asked(tiny: Path, report: Report) -> None:
    with serve(Service(folder=tiny, models_extra={"meta": {"n_vocab": 7}})) as service:
        with pytest.raises(Day0Error, match="another model: the server's has 7 tokens"):
            report(service.url)
        assert len(service.bodies) <= 2  # the probe alone


def test_an_unknown_model_is_refused_with_what_there_is(tiny: Path, report: Report) -> None:
    with serve(Service(folder=tiny)) as service, pytest.raises(Day0Error) as caught:
        report(service.url, model="tinny")
    assert caught.value.facts == ("it has tiny",)
    assert caught.value.hint == "did you mean tiny?"


def test_all_lines_have_a_name() -> None:
    assert len({one["id"] for one in LINES}) == len(LINES)

"""The XML of a server's record: red where the record is, whatever the server has sent."""

from __future__ import annotations

from xml.etree import ElementTree

from day0.records import EndpointPrompt, EndpointReport, GateResult
from day0.reports.endpoint import render_endpoint_junit


def gate(metric: str, verdict: str, *, passed: bool) -> GateResult:
    return GateResult.model_validate(
        {
            "metric": metric,
            "rule": "==",
            "limit": 0,
            "value": None,
            "verdict": verdict,
            "passed": passed,
            "reason": "why",
        }
    )


def test_gates_and_prompts_are_tests() -> None:
    report = EndpointReport(
        endpoint="http://127.0.0.1/v1",
        model="<tiny>",
        api="chat",
        reference="folder",
        prompts="text",
        prompts_sha256="sha256:0",
        concurrency=1,
        verdict="failed",
        gates=(
            gate("a", "successful", passed=True),
            gate("b", "failed", passed=False),
            gate("c", "inconclusive", passed=False),
            gate("d", "inconclusive", passed=True),
        ),
        results=(
            EndpointPrompt(name="good", status="explained"),
            EndpointPrompt(name="bad\x00", status="fail", reason="token 3", text="]]>\x1b&<x", reproduce="curl"),
            EndpointPrompt(name="lost", status="unanswered"),
        ),
    )
    root = ElementTree.fromstring(render_endpoint_junit(report))  # noqa: S314 - made here
    suite = root[0]
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "7", "failures": "2", "errors": "2", "skipped": "1"}
    text = suite.findtext("testcase[6]/failure")
    assert text is not None
    assert "&<x" in text
    assert "\x1b" not in text

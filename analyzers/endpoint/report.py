"""From what was asked and judged to the record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from day0.analyzers.canary.gates import as_figure, figure_results, judge_gates
from day0.analyzers.endpoint.asking import Round
from day0.analyzers.endpoint.client import Server
from day0.analyzers.endpoint.compare import Comparison, Plan, Side
from day0.analyzers.endpoint.figures import outcome_counts
from day0.analyzers.endpoint.outcomes import WORDS
from day0.analyzers.endpoint.places import Difference, Judged, Place, Replies
from day0.analyzers.endpoint.reproduce import curl_command
from day0.records import EndpointFailure, EndpointPrompt, EndpointReport, GateResult

__all__ = ["Bodies", "report_of"]

MAX_TEXT = 4000
"""Characters of a text that are kept."""


Bodies = Mapping[str, tuple[str, str]]
"""By prompt: the request's file below the run folder, and its path from where the command was given."""


def report_of(found: Comparison, plan: Plan, bodies: Bodies) -> EndpointReport:
    """Return the record, without the key wherever the server may have put it."""
    gates = judge_gates(found.gates, found.figures)
    results = _results(found, bodies)
    verdict, reason = _verdict(gates, results)
    report = EndpointReport(
        endpoint=found.server.root,
        model=found.server.model,
        api=found.server.api,
        reference=found.reference,
        prompts=plan.prompts.source,
        prompts_sha256=plan.prompts.sha256,
        concurrency=plan.concurrency,
        verdict=verdict,
        reason=reason,
        gates=gates,
        left_out=dict(found.left_out),
        figures=figure_results({name: as_figure(one) for name, one in found.figures.items()}),
        outcomes=outcome_counts(found.rounds),
        failures=_failures(found.rounds),
        results=results,
        facts=dict(found.facts),
        notes=found.notes,
    )
    report = found.server.secret.hidden(report)
    return plan.reference.secret.hidden(report) if isinstance(plan.reference, Side) else report


def _verdict(gates: Sequence[GateResult], results: Sequence[EndpointPrompt]) -> tuple[str, str]:
    """Return the verdict of all gates, and why; for other tokens than the reference's, the first such prompt."""
    broken = [one for one in gates if one.verdict == "failed"]
    if broken:
        first = next((one.reason for one in results if one.status == "fail"), "")
        greedy = any(one.metric == "unexplained_prompts" for one in broken)
        return "failed", first if greedy and first else broken[0].reason
    open_ = [one for one in gates if not one.passed]
    return ("inconclusive", open_[0].reason) if open_ else ("successful", "")


def _failures(rounds: Sequence[Round]) -> tuple[EndpointFailure, ...]:
    return tuple(
        EndpointFailure(
            prompt=reply.prompt.name,
            round=one.name,
            outcome=reply.failure.outcome if reply.failure is not None else reply.earlier[-1].outcome,
            detail=(reply.failure or reply.earlier[-1]).detail[:300],
            earlier=tuple(try_.outcome for try_ in reply.earlier),
            answered=reply.answer is not None,
        )
        for one in rounds
        for reply in one.replies
        if reply.failure is not None or reply.earlier
    )


def _results(found: Comparison, bodies: Bodies) -> tuple[EndpointPrompt, ...]:
    by_name = {one.replies.prompt.name: one for one in found.judged}
    return tuple(_result(one, by_name.get(one.prompt.name), found.server, bodies) for one in found.asked)


def _result(replies: Replies, judged: Judged | None, server: Server, bodies: Bodies) -> EndpointPrompt:
    name, outcome = replies.prompt.name, replies.outcome
    if outcome is not None:
        reason = f"prompt {name!r} was not answered: {WORDS[outcome]}"
        return EndpointPrompt(name=name, status="unanswered", reason=reason)
    if judged is None:
        return EndpointPrompt(name=name, status="not_judged", reason="the reference did not answer it")
    place, main = judged.first, replies.main
    assert main is not None  # noqa: S101 - what is judged has an answer
    errors = [one.error for one in judged.places if one.error is not None]
    body, path = bodies[name]
    plain = EndpointPrompt(
        name=name,
        status="fail" if judged.unexplained is not None else "explained" if place is not None else "pass",
        compared="tokens" if judged.by_tokens else "text",
        tokens=len(judged.places),
        text=main.text[:MAX_TEXT],
        logprob_error=sum(errors) / len(errors) if errors else None,
        prompt_tokens=main.prompt_tokens,
        reference_prompt_tokens=judged.prompt_tokens,
        right=judged.right,
        reference_right=judged.reference_right,
        differs={round_: _difference(one) for round_, one in judged.differences.items()},
        body=body,
        reproduce=curl_command(server, path),
    )
    return plain if place is None else plain.model_copy(update=_told(name, judged, place))


def _told(name: str, judged: Judged, place: Place) -> dict[str, object]:
    """Return what is said of the place that decides."""
    margin = place.margin if math.isfinite(place.margin) else None
    distance = "nobody knows how far apart" if margin is None else f"{margin:.3g} nats apart"
    where = f"token {place.number}" if judged.by_tokens or margin is not None else "the text"
    tokens = [_token(*one, place) for one in ((place.got, place.got_id), (place.best, place.best_id))]
    reason = f"prompt {name!r}, {where}: {tokens[0]} instead of {tokens[1]}, {distance}"
    return {
        "reason": f"{reason}; rounding explains {place.explained:.3g}",
        "position": place.number,
        "got": place.got[:MAX_TEXT],
        "expected": place.best[:MAX_TEXT],
        "got_id": place.got_id,
        "expected_id": place.best_id,
        "margin": margin,
        "explained": place.explained,
        "expected_text": judged.expected[:MAX_TEXT],
    }


def _short(text: str) -> str:
    return repr(text if len(text) <= 24 else text[:24] + "…") if text else "the end"


def _token(text: str, number: int, place: Place) -> str:
    """Return a token as text, and as its id where both texts are the same, as parts of characters are."""
    return f"{_short(text)} (id {number})" if place.got == place.best and number >= 0 else _short(text)


def _difference(found: Difference) -> str:
    where = f"token {found.number}" if found.number >= 0 else "the text"
    how = "explained by rounding" if not found.unexplained else "not explained by rounding"
    return f"{where}: {_short(found.second)} instead of {_short(found.first)}, {how}"

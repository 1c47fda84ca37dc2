"""The figures of a comparison, with intervals where they come from samples, and the gates that stand on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from day0.analyzers.canary.gates import Figure
from day0.analyzers.endpoint.asking import Abilities, Round
from day0.analyzers.endpoint.outcomes import SERVER_FAULTS
from day0.analyzers.endpoint.places import Judged, Place, Replies
from day0.analyzers.modules.measure import RATIO
from day0.analyzers.modules.scores import compare_scores
from day0.playbook import Gate

__all__ = ["GATES", "METRICS", "default_gates", "measure_endpoint", "outcome_counts"]

GATES = (
    Gate(metric="unanswered", rule="==", limit=0, inconclusive="fail"),
    Gate(metric="server_faults", rule="==", limit=0, inconclusive="fail"),
    Gate(metric="prompt_tokens_differ", rule="==", limit=0, inconclusive="warn"),
    Gate(metric="unexplained_prompts", rule="==", limit=0, inconclusive="fail"),
    Gate(metric="logprob_error_ratio", rule="<=", limit=RATIO, inconclusive="fail"),
    # A divergence grows as the square of the error.
    Gate(metric="divergence_ratio", rule="<=", limit=RATIO**2, inconclusive="fail"),
    Gate(metric="prompt_logprob_error_ratio", rule="<=", limit=RATIO, inconclusive="fail"),
    Gate(metric="unexplained_repeats", rule="==", limit=0, inconclusive="fail"),
    Gate(metric="unexplained_in_batch", rule="==", limit=0, inconclusive="fail"),
    Gate(metric="accuracy_drop", rule="<=", limit=0.05, inconclusive="warn"),
)
"""What a server has to keep. A gate of the user on the same figure takes its place."""

DIGITS = 1e-5
"""Logprobs travel as decimal text, of some with five digits: no yardstick is smaller, in nats."""
SMALLEST_DIVERGENCE = 1e-6
"""The same for a divergence, whose share of all other tokens is a difference of sums."""
DRAWS = 2000
METRICS = frozenset(
    {
        *(one.metric for one in GATES),
        "prompts",
        "requests",
        "tokens_compared",
        "equal_prompts",
        "explained_prompts",
        "retried",
        "logprob_error",
        "logprob_error_max",
        "divergence",
        "prompt_logprob_error",
        "repeats_differ",
        "in_batch_differ",
        "accuracy",
        "reference_accuracy",
        "first_token_p50",
        "first_token_p95",
        "per_token_p50",
        "per_token_p95",
        "first_token_in_batch_p50",
        "first_token_in_batch_p95",
        "throughput",
    }
)
"""Every name that a gate may stand on."""


def default_gates(can: Abilities, *, counts: bool, answers: bool) -> tuple[tuple[Gate, ...], dict[str, str]]:
    """Return the gates for what a server offers, and those that are left out, with the reasons."""
    out: dict[str, str] = {}
    if not can.logprobs:
        out |= dict.fromkeys(("logprob_error_ratio", "divergence_ratio"), "the server gives no logprobs")
    if not can.echo:
        out["prompt_logprob_error_ratio"] = "the server gives no logprobs of prompts"
    if not counts:
        out["prompt_tokens_differ"] = "the server does not count prompt tokens"
    if not answers:
        out["accuracy_drop"] = "the prompts say no right answers"
    return tuple(one for one in GATES if one.metric not in out), out


def measure_endpoint(
    asked: Sequence[Replies], judged: Sequence[Judged], rounds: Sequence[Round]
) -> dict[str, float | Figure]:
    """Return all figures. What cannot be measured has none, or says why."""
    return {**_requests(asked, rounds), **_greedy(judged), **_logprobs(judged), **_tasks(judged), **_speed(rounds)}


def outcome_counts(rounds: Sequence[Round]) -> dict[str, int]:
    """Count what became of every request that was sent, and of those that were not."""
    found: Counter[str] = Counter()
    for reply in (reply for one in rounds for reply in one.replies):
        found.update(one.outcome for one in reply.earlier)
        found[reply.failure.outcome if reply.failure is not None else "answered"] += 1
    return dict(sorted(found.items()))


def _requests(asked: Sequence[Replies], rounds: Sequence[Round]) -> dict[str, float | Figure]:
    counts = outcome_counts(rounds)
    faults = sum(number for name, number in counts.items() if name in SERVER_FAULTS)
    failures = [reply.failure for one in rounds for reply in one.replies if reply.failure is not None]
    lacking = Counter(one.outcome for one in failures if one.outcome not in SERVER_FAULTS)
    unanswered: float | Figure = 0.0
    if lacking:
        # Says nothing of the model: more cannot be known.
        said = ", ".join(f"{number} {name}" for name, number in sorted(lacking.items()))
        total = sum(len(one.replies) for one in rounds)
        unanswered = Figure(None, why=f"{sum(lacking.values())} of {total} requests were not answered: {said}")
    return {
        "prompts": float(len(asked)),
        "requests": float(sum(counts.values()) - counts.get("not_asked", 0)),
        "unanswered": unanswered,
        "server_faults": float(faults),
        "retried": float(sum(len(reply.earlier) for one in rounds for reply in one.replies)),
    }


def _greedy(judged: Sequence[Judged]) -> dict[str, float | Figure]:
    if not judged:
        return {}
    counted = [
        one.counted != one.prompt_tokens for one in judged if one.counted is not None and one.prompt_tokens is not None
    ]
    found: dict[str, float | Figure] = {
        "tokens_compared": float(sum(len(one.places) for one in judged)),
        "equal_prompts": float(sum(one.first is None for one in judged)),
        "explained_prompts": float(sum(one.first is not None and one.unexplained is None for one in judged)),
        "unexplained_prompts": float(sum(one.unexplained is not None for one in judged)),
    }
    if counted:
        found["prompt_tokens_differ"] = float(sum(counted))
    for name, differ, unexplained in (
        ("again", "repeats_differ", "unexplained_repeats"),
        ("together", "in_batch_differ", "unexplained_in_batch"),
    ):
        # A round that is the only one that was answered has nothing to be held against.
        if any(one.replies.answer(name) not in (None, one.replies.main) for one in judged):
            found[differ] = float(sum(name in one.differences for one in judged))
            found[unexplained] = float(
                sum(name in one.differences and one.differences[name].unexplained for one in judged)
            )
    return found


def _logprobs(judged: Sequence[Judged]) -> dict[str, float | Figure]:
    found: dict[str, float | Figure] = {}
    for prefix, groups in (("", [one.places for one in judged]), ("prompt_", [one.prompt_places for one in judged])):
        errors = [[one.error for one in places if one.error is not None] for places in groups]
        if not any(errors):
            why = "of no answer are the tokens known: the server shows parts of characters, and no ids"
            found[f"{prefix}logprob_error_ratio"] = Figure(None, why=why)
            found |= {} if prefix else {"divergence_ratio": Figure(None, why=why)}
            continue
        own = _mean(one.yardstick for places in groups for one in places if one.error is not None)
        mean = _mean_figure(errors, "nats")
        found[f"{prefix}logprob_error"] = mean
        found[f"{prefix}logprob_error_ratio"] = _over(mean, max(own, DIGITS))
        if not prefix:
            found["logprob_error_max"] = Figure(max(max(one) for one in errors if one), unit="nats")
            found |= _divergences(groups)
    return found


def _divergences(groups: Sequence[Sequence[Place]]) -> dict[str, float | Figure]:
    values = [[one.divergence for one in places if one.divergence is not None] for places in groups]
    if not any(values):
        return {}
    own = _mean(one.divergence_yardstick for places in groups for one in places if one.divergence is not None)
    mean = _mean_figure(values, "nats")
    return {"divergence": mean, "divergence_ratio": _over(mean, max(own, SMALLEST_DIVERGENCE))}


def _tasks(judged: Sequence[Judged]) -> dict[str, float | Figure]:
    after = {one.replies.prompt.name: one.right for one in judged if one.right is not None}
    before = {one.replies.prompt.name: one.reference_right for one in judged if one.reference_right is not None}
    both = sorted(after.keys() & before.keys())
    if not both:
        return {}
    found = compare_scores(
        {one: bool(before[one]) for one in both}, {one: bool(after[one]) for one in both}, paired=True
    )
    low, high = found.interval
    spans = [Figure(one, *span, len(both)) for one, span in zip(found.scores, found.intervals, strict=True)]
    drop = Figure(-found.difference, -high, -low, len(both))
    return {"reference_accuracy": spans[0], "accuracy": spans[1], "accuracy_drop": drop}


def _speed(rounds: Sequence[Round]) -> dict[str, float | Figure]:
    by_name = {one.name: one for one in rounds}
    found: dict[str, float | Figure] = {}
    for name, prefix in (("alone", "first_token"), ("together", "first_token_in_batch")):
        answers = [reply.answer for reply in by_name[name].replies if reply.answer] if name in by_name else []
        found |= _percentiles(prefix, [one.first_s for one in answers if one.first_s is not None])
        if name == "alone":
            steps = [
                (one.last_s - one.first_s) / (one.new_tokens - 1)
                for one in answers
                if one.first_s is not None and one.last_s is not None and one.new_tokens and one.new_tokens > 1
            ]
            found |= _percentiles("per_token", steps)
        counts = [one.new_tokens for one in answers if one.new_tokens is not None]
        if name == "together" and counts and by_name[name].seconds > 0.0:
            found["throughput"] = Figure(sum(counts) / by_name[name].seconds, unit="tokens/s")
    return found


def _percentiles(prefix: str, values: Sequence[float]) -> dict[str, float | Figure]:
    if not values:
        return {}
    return {
        f"{prefix}_p{share}": Figure(float(np.percentile(values, share)), samples=len(values), unit="s")
        for share in (50, 95)
    }


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def _mean_figure(groups: Sequence[Sequence[float]], unit: str) -> Figure:
    """Return the mean over all tokens. Its interval of 95 % comes from drawing prompts anew: tokens of one belong together."""
    filled = [one for one in groups if one]
    sums, sizes = np.array([sum(one) for one in filled]), np.array([len(one) for one in filled])
    value = float(sums.sum() / sizes.sum())
    if len(filled) < 2:
        return Figure(value, samples=int(sizes.sum()), unit=unit)
    drawn = np.random.default_rng(0).integers(0, len(filled), size=(DRAWS, len(filled)))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = (float(one) for one in np.percentile(means, (2.5, 97.5)))
    return Figure(value, min(low, value), max(high, value), int(sizes.sum()), unit)


def _over(figure: Figure, scale: float) -> Figure:
    value, low, high = (None if one is None else one / scale for one in (figure.value, figure.low, figure.high))
    return Figure(value, low, high, figure.samples)

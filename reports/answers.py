"""The four answers at the head of a report: can it run, how right is it, how fast, what next."""

from __future__ import annotations

import math
from dataclasses import dataclass

from day0.reports.figures import counted, error_text, seconds_text, share_text
from day0.reports.summary import Summary

__all__ = ["Answer", "answers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One question with a short answer and one line below it."""

    question: str
    short: str
    more: str
    tone: str


def answers(summary: Summary) -> tuple[Answer, ...]:
    """Return the four, each from what the records say or with what is missing."""
    return (_runs(summary), _right(summary), _fast(summary), _next(summary))


def _runs(summary: Summary) -> Answer:
    passed = sum(stage.status == "pass" for stage in summary.stages)
    bad = any(stage.status == "fail" for stage in summary.stages)
    return Answer(
        question="Can it run?",
        short="Yes" if summary.can_run else "No" if bad else "Not known yet",
        more=f"{passed} of {len(summary.stages)} stages passed",
        tone="good" if summary.can_run else "bad" if bad else "wait",
    )


def _right(summary: Summary) -> Answer:
    question, found = "How right?", summary.right
    failed = len(summary.failures)
    canary = _canary_error(summary)
    tone = "bad" if failed or canary else "good"
    wrong = (f"; {counted(failed, 'case fails', 'cases fail')}" if failed else "") + canary
    if found is None:
        judged = sum(count for status, count in summary.checks.items() if status != "skipped")
        short = "Exact" if judged and not failed else "Wrong" if failed else "Not known yet"
        more = (
            f"{counted(judged, 'case')} judged, none with an error of its own{wrong}"
            if judged
            else "no case was judged"
        )
        return Answer(question=question, short=short, more=more, tone=tone if judged else "wait")
    ratio = "not finite" if not math.isfinite(found.error) else f"{found.ratio:.2g} ×"
    if math.isinf(found.ratio) and math.isfinite(found.error):
        ratio = error_text(found.error)
    limit = f", limit {error_text(found.limit)}" if found.limit is not None else ""
    more = (
        f"the largest error over what the dtype itself costs: {error_text(found.error)} against "
        f"{error_text(found.yardstick)}{limit}, {found.op} ({found.regime}){wrong}"
    )
    return Answer(question=question, short=ratio, more=more, tone=tone)


def _canary_error(summary: Summary) -> str:
    """Return what the canary says against it: operators that are right alone can be wrong in a model."""
    for step in summary.canary:
        for gate in step.gates:
            if not gate.passed and "error" in gate.rule and gate.value is not None:
                return f"; but in the canary's {step.name} {gate.rule.partition(' ')[0]} is {gate.value:.3g}"
    return ""


def _fast(summary: Summary) -> Answer:
    question, found = "How fast?", summary.fast
    if found is None:
        return Answer(question=question, short="Not known yet", more="no canary stage decoded a token", tone="wait")
    share = f"; its operators reach {share_text(found.roofline_share)} of the roofline" if found.roofline_share else ""
    more = f"a token of decode in {found.stage}, {found.how}{share}"
    return Answer(question=question, short=seconds_text(found.seconds_per_token), more=more, tone="good")


def _next(summary: Summary) -> Answer:
    first = summary.next[0] if summary.next else None
    if first is None:
        return Answer(question="What next?", short="Nothing blocks", more="nothing is left that is known", tone="good")
    kind = "this blocks" if first.blocking else "this would make it faster"
    worth = f", {share_text(first.share)} of the roofline time" if first.share else ""
    return Answer(
        question="What next?", short=first.what, more=f"{kind}{worth}", tone="bad" if first.blocking else "wait"
    )

"""What the records say about numerics cases and canary stages, worst first."""

from __future__ import annotations

import math
from collections import Counter

from day0.records import CaseResult, StageResult
from day0.reports.bundle import Bundle
from day0.reports.findings import Weights
from day0.reports.summary import Case, GateLine, Skipped, Step

__all__ = [
    "NEAREST",
    "WORST_STATUS",
    "canary_steps",
    "check_counts",
    "excess",
    "failed_cases",
    "nearest_cases",
    "skipped_cases",
    "worst_text",
]

NEAREST = 10
"""How many passing cases are shown with their distance to the limit."""

WORST_STATUS = ("crashed", "hung", "fail", "fell_back", "undelegated", "xpass")
"""The worst first."""


def check_counts(bundle: Bundle) -> dict[str, int]:
    """Return the number of cases by status, most first."""
    return dict(Counter(case.status for case in bundle.numerics.cases).most_common()) if bundle.numerics else {}


def failed_cases(bundle: Bundle, weights: Weights) -> tuple[Case, ...]:
    """Return the cases that fail the stage: crashes first, then by how far they are beyond their limit."""
    bad = [case for case in bundle.numerics.cases if case.failed] if bundle.numerics else []
    bad.sort(key=lambda case: (WORST_STATUS.index(case.status), -excess(case), case.op, case.case))
    return tuple(_case(case, weights) for case in bad)


def nearest_cases(bundle: Bundle, weights: Weights) -> tuple[Case, ...]:
    """Return the passing cases that came nearest to their limit."""
    good = [case for case in bundle.numerics.cases if case.status == "pass" and case.error] if bundle.numerics else []
    good.sort(key=lambda case: (-excess(case), case.op, case.case))
    return tuple(_case(case, weights) for case in good[:NEAREST])


def excess(case: CaseResult) -> float:
    """Return error over limit; infinity where either is unknown or not a number, which is worse than any figure."""
    if case.error is None or case.limit is None or math.isnan(case.error) or math.isnan(case.limit):
        return math.inf
    return case.error / case.limit if case.limit > 0.0 else (math.inf if case.error > 0.0 else 0.0)


def worst_text(case: CaseResult) -> str:
    """Return index, value and expected value of the worst element; empty where no element was singled out."""
    if case.worst_index is None:
        return ""
    return f"worst at {list(case.worst_index)}: {case.worst_got}, expected {case.worst_expected}"


def _case(case: CaseResult, weights: Weights) -> Case:
    return Case(
        op=case.op,
        shapes=case.shapes,
        regime=case.regime,
        seed=case.seed,
        implementation=case.implementation,
        status=case.status,
        rule=case.rule,
        reason=case.reason,
        golden=case.golden,
        error=case.error,
        yardstick=case.yardstick,
        limit=case.limit,
        worst=worst_text(case),
        reproducer=case.reproducer,
        share=weights.share.get(case.signature, 0.0),
    )


def skipped_cases(bundle: Bundle) -> tuple[Skipped, ...]:
    """Return why cases could not be judged, the commonest reason first."""
    cases = bundle.numerics.cases if bundle.numerics else ()
    groups = Counter((case.op, case.reason) for case in cases if case.status == "skipped")
    rows = [Skipped(op=op, reason=reason, cases=count) for (op, reason), count in groups.items()]
    return tuple(sorted(rows, key=lambda row: (-row.cases, row.op, row.reason)))


def canary_steps(bundle: Bundle) -> tuple[Step, ...]:
    """Return the canary stages in their order."""
    return tuple(_step(stage) for stage in bundle.canary.stages) if bundle.canary else ()


def _step(stage: StageResult) -> Step:
    gates = tuple(
        GateLine(
            rule=f"{gate.metric} {gate.rule} {gate.limit:g}",
            value=gate.value,
            low=gate.low,
            high=gate.high,
            verdict=gate.verdict,
            passed=gate.passed,
            reason=gate.reason,
        )
        for gate in stage.gates
    )
    return Step(
        name=stage.name,
        title=stage.title,
        status=stage.status,
        reason=stage.reason,
        gates=gates,
        metrics=stage.metrics,
        warnings=stage.warnings,
        diverged=stage.diverged,
        evidence=stage.evidence,
    )

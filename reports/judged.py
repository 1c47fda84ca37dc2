"""How right the numbers are: the worst case of each operator, and what the check warned of."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

from day0.records import CaseResult
from day0.reports.bundle import Bundle
from day0.reports.cases import WORST_STATUS, excess, worst_text
from day0.reports.summary import OperatorError, Right, Warned

__all__ = ["how_right", "operator_errors", "warned_operators"]

TEXTS = 3
"""Different warnings of one operator that are shown."""


def operator_errors(bundle: Bundle) -> tuple[OperatorError, ...]:
    """Return for each operator the case that is nearest to its limit or furthest beyond it, worst first."""
    groups: dict[str, list[CaseResult]] = defaultdict(list)
    for case in bundle.numerics.cases if bundle.numerics else ():
        if case.error is not None:
            groups[case.op].append(case)
    worst = [(max(members, key=lambda case: (case.failed, excess(case))), members) for members in groups.values()]
    worst.sort(key=lambda pair: (not pair[0].failed, -excess(pair[0]), pair[0].op))
    return tuple(_error(case, members) for case, members in worst)


def _error(case: CaseResult, members: list[CaseResult]) -> OperatorError:
    statuses = {one.status for one in members}
    return OperatorError(
        op=case.op,
        status=next((status for status in WORST_STATUS if status in statuses), case.status),
        cases=len(members),
        error=case.error if case.error is not None else math.nan,
        yardstick=case.yardstick,
        limit=case.limit,
        shapes=case.shapes,
        regime=case.regime,
        implementation=case.implementation,
        worst=worst_text(case),
        reproducer=case.reproducer,
    )


def how_right(bundle: Bundle) -> Right | None:
    """Return the case whose error is the largest over what the dtype itself costs; None where none was measured.

    Cases without an error of their own are left out. Not a number counts as infinite.
    """
    cases = bundle.numerics.cases if bundle.numerics else ()
    found = [(_ratio(case), case) for case in cases if case.error and case.yardstick is not None]
    if not found:
        return None
    ratio, case = max(found, key=lambda pair: (pair[0], pair[1].case))
    return Right(
        op=case.op,
        regime=case.regime,
        error=case.error or 0.0,
        yardstick=case.yardstick or 0.0,
        ratio=ratio,
        limit=case.limit,
    )


def _ratio(case: CaseResult) -> float:
    error, yardstick = case.error or 0.0, case.yardstick or 0.0
    if math.isnan(error) or math.isnan(yardstick) or yardstick <= 0.0:
        return math.inf
    return error / yardstick


def warned_operators(bundle: Bundle) -> tuple[Warned, ...]:
    """Return the operators with warnings on cases that did not fail, the most warned first."""
    texts: dict[str, Counter[str]] = defaultdict(Counter)
    cases: dict[str, list[CaseResult]] = defaultdict(list)
    for case in bundle.numerics.cases if bundle.numerics else ():
        if case.warnings and not case.failed:
            texts[case.op].update(case.warnings)
            cases[case.op].append(case)
    rows = [
        Warned(op=op, cases=len(found), texts=_commonest(texts[op]), shapes=found[0].shapes)
        for op, found in cases.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.cases, row.op)))


def _commonest(found: Counter[str]) -> tuple[str, ...]:
    shown = [text for text, _ in found.most_common(TEXTS)]
    left = len(found) - len(shown)
    return (*shown, f"and {left:,} other warnings") if left else tuple(shown)

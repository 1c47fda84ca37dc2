"""The figures of a selftest, for the terminal and for the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from day0.analyzers.selftest.scoring import rate, wilson
from day0.records import FaultScore, RightScore, SelftestReport

__all__ = ["HOW_WORDS", "alarm_rows", "detection_rows", "how_rows", "missed", "percent"]

HOW_WORDS = {
    "values": "wrong results at ordinary values",
    "other_cases": "wrong results only for other values or ways to call",
    "warned": "right results, and the warning that is owed",
    "reported": "only the call of the bug report shows it",
    "not_on_device": "right results from the wrong place",
    "raised": "the device raised",
    "missed": "missed",
    "not_measured": "not measured",
}
Row = tuple[str, ...]


def percent(hits: int, total: int) -> str:
    """Return a rate, as `98/103 = 95.1 % (89.1 to 97.9)` with its 95 % interval."""
    if total == 0:
        return "-"
    low, high = (100 * one for one in wilson(hits, total))
    return f"{hits}/{total} = {100 * hits / total:.1f} % ({low:.1f} to {high:.1f})"


def detection_rows(report: SelftestReport) -> list[Row]:
    """Return rows by family, then both halves and all: faults, found on either level and on each, the usual rules."""
    header = ("family", "faults", "day0", "operators", "models", *report.usual)
    families = sorted({one.family for one in report.faults})
    groups: list[tuple[str, Callable[[FaultScore], bool]]] = [
        *((name, lambda one, name=name: one.family == name) for name in families),
        ("open half", lambda one: not one.held_out),
        ("held out half", lambda one: one.held_out),
        ("all", lambda one: True),
    ]
    return [header, *(_row(title, [one for one in report.faults if wanted(one)], report) for title, wanted in groups)]


def _row(title: str, faults: Sequence[FaultScore], report: SelftestReport) -> Row:
    found, total = rate(faults)
    whole = title in ("all", "open half", "held out half")
    on_operators = [one for one in faults if one.operator.how != "not_measured"]
    on_models = [one for one in faults if one.model.how != "not_measured"]
    operators = sum(one.operator.is_found for one in on_operators)
    models = sum(one.model.is_found for one in on_models)
    usual = [sum(one.usual.get(rule, False) for one in on_operators) for rule in report.usual]
    text = percent if whole else lambda hits, many: f"{hits}/{many}" if many else "-"
    return (
        title,
        str(total),
        text(found, total),
        text(operators, len(on_operators)),
        text(models, len(on_models)),
        *(text(hits, len(on_operators)) for hits in usual),
    )


def alarm_rows(report: SelftestReport) -> list[Row]:
    """Return rows of what is right: cases judged, how many of them the check reports, how many the usual rules."""
    header = ("what is right", "cases", "day0", *report.usual)
    kinds = (("clean device", "clean "), ("legitimate differences", "difference "), ("bundled kernels", "kernel "))
    rows = [header]
    for title, prefix in kinds:
        many = [one for one in report.right if one.subject.startswith(prefix)]
        rows.append(_alarm_row(title, many, report))
    others = [one for one in report.right if not one.subject.startswith(tuple(prefix for _, prefix in kinds))]
    if others:
        rows.append(_alarm_row("models", others, report))
    rows.append(_alarm_row("all", list(report.right), report))
    return rows


def _alarm_row(title: str, many: Sequence[RightScore], report: SelftestReport) -> Row:
    usual = (
        f"{sum(one.usual.get(rule, 0) for one in many)}/{sum(one.usual_judged for one in many)}"
        for rule in report.usual
    )
    return (title, str(sum(one.judged for one in many)), str(sum(len(one.alarms) for one in many)), *usual)


def how_rows(report: SelftestReport) -> list[Row]:
    """Return how the faults were found, by the better of the two levels."""
    counts = Counter(
        (one.operator if one.operator.is_found or not one.model.is_found else one.model).how for one in report.faults
    )
    return [(HOW_WORDS[how], str(counts[how])) for how in HOW_WORDS if counts[how]]  # type: ignore[index]  # its keys


def missed(report: SelftestReport) -> list[FaultScore]:
    """Return the faults that neither level reports."""
    return [one for one in report.faults if not one.is_found]

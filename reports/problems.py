"""What a pipeline shows beside the code: each thing that keeps a run from passing, and what its verdict leaves open."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from day0.reports.clean import path_below
from day0.reports.figures import counted, share_text
from day0.reports.summary import Case, OpenGap, Stage, Step, Summary
from day0.reports.words import word

__all__ = ["Level", "Problem", "problems"]

Level = Literal["error", "warning"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing to show: `error` keeps the run from passing, `warning` does not."""

    level: Level
    check: str
    """Which rule it breaks: `day0.register`, `day0.check.crashed`, …"""
    title: str
    message: str
    file: str
    """The user's kernel where the problem lies in one, else the record; below the folder that the run was started in."""
    line: int = 1
    key: str = ""
    """What stays the same from run to run: the operator, case or gate."""


def problems(summary: Summary, *, root: str = "") -> tuple[Problem, ...]:
    """Return them, most important first; none for a run that passed and leaves nothing open.

    `root` is the run folder as the pipeline sees it, put before the names of records.
    """
    found: list[Problem] = []
    for stage in summary.stages:
        if stage.status != "pass" and not (stage.status == "missing" and stage.blocked_by):
            found += _of_stage(summary, stage, root)
    return (*found, *_open(summary, root))


def _of_stage(summary: Summary, stage: Stage, root: str) -> Iterator[Problem]:
    if stage.status in ("missing", "stale"):
        yield _whole(stage, f"{stage.headline}; make it with: {stage.command}", root)
        return
    own: list[Problem] = []
    if stage.name == "register":
        own = [_gap(gap, _below(root, stage.file)) for gap in summary.gaps]
    elif stage.name == "check":
        kernels = _kernels(summary)
        own = [_case(case, kernels.get(_ran(case)) or (_below(root, stage.file), 1)) for case in summary.failures]
    elif stage.name == "canary":
        own = [_step(step, _below(root, stage.file)) for step in summary.canary if step.status == "fail"]
    yield from own
    # The model level, and a stage that fails as a whole, have no line of their own in the summary.
    rest = stage.problems[len(own) :] if stage.problems else (() if own else (stage.headline,))
    yield from (_whole(stage, text, root) for text in rest)


def _below(root: str, file: str) -> str:
    return f"{root.rstrip('/')}/{file}" if root else file


def _whole(stage: Stage, text: str, root: str) -> Problem:
    return Problem(
        level="error",
        check=f"day0.{stage.name}",
        title=f"{stage.name}: {word(stage.status)}",
        message=text,
        file=_below(root, stage.file),
        key=stage.status,
    )


def _gap(gap: OpenGap, file: str) -> Problem:
    dtypes = ", ".join(gap.dtypes) or "no tensors"
    worth = f", {share_text(gap.share)} of the roofline time" if gap.share else ""
    place = f", first in {gap.module}" if gap.module else ""
    return Problem(
        level="error",
        check="day0.register",
        title=f"open gap: {gap.operator}",
        message=f"{gap.operator} ({dtypes}) has no implementation: {gap.reason}; "
        f"{counted(gap.calls, 'call')}{worth}{place}",
        file=file,
        key=f"{gap.operator} {dtypes}",
    )


def _case(case: Case, place: tuple[str, int]) -> Problem:
    facts = [f"{case.op} {case.shapes} ({case.regime}): {case.rule}: {case.reason}", case.worst]
    facts.append(f"reproduce: day0 repro {case.reproducer}, below the run folder" if case.reproducer else "")
    return Problem(
        level="error",
        check=f"day0.check.{case.status}",
        title=f"{case.op}: {word(case.status)}",
        message="; ".join(text for text in facts if text),
        file=place[0],
        line=place[1],
        key=f"{case.op} {case.shapes} {case.regime} {case.seed} {case.implementation}",
    )


_PYTHON_FILE = re.compile(r"([^,:]+\.py)(?::(\d{1,7}))?")
"""A kernel's origin where it is a file; what an installed package brings names the package before it."""


def _kernels(summary: Summary) -> dict[tuple[str, str], tuple[str, int]]:
    """Return file and line by operator and implementation, for those in a file below where the run was started."""
    places: dict[tuple[str, str], tuple[str, int]] = {}
    for one in summary.replacements:
        found = _PYTHON_FILE.fullmatch(one.origin)
        if found and path_below(found[1]) == found[1]:
            places[(one.operator, one.implementation)] = found[1], int(found[2] or 1)
    return places


def _ran(case: Case) -> tuple[str, str]:
    return case.op, case.implementation.rpartition(" ")[2]


def _step(step: Step, file: str) -> Problem:
    broken = next((gate for gate in step.gates if not gate.passed), None)
    reason = step.reason or (broken.reason if broken else "") or "a gate was not met"
    first = f"; first to go wrong: {step.diverged}" if step.diverged else ""
    return Problem(
        level="error",
        check="day0.canary",
        title=f"canary stage {step.name}: {broken.rule if broken else 'could not measure'}",
        message=f"{reason}{first}",
        file=file,
        key=f"{step.name} {broken.rule if broken else ''}",
    )


def _open(summary: Summary, root: str) -> Iterator[Problem]:
    """Yield gates that could not be decided, and what the verdict does not cover."""
    file = _below(root, "canary.json")
    for step in summary.canary:
        for gate in step.gates:
            if gate.verdict == "inconclusive" and gate.passed:
                title = f"canary stage {step.name}: not decided"
                yield _warning("day0.canary", title, f"{gate.rule}: {gate.reason}", file, f"{step.name} {gate.rule}")
    for text in summary.caveats:
        yield _warning("day0.caveat", "not covered by the verdict", text, _below(root, "report/report.md"), text)


def _warning(check: str, title: str, message: str, file: str, key: str) -> Problem:
    return Problem(level="warning", check=check, title=title, message=message, file=file, key=key)

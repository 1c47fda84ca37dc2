"""The report as JUnit XML for CI systems: one suite for each stage. A suite is red exactly where its stage is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from day0.records import CaseResult, GateResult, InventoryEntry, LockEntry, StageResult
from day0.reports.bundle import Bundle
from day0.reports.cases import worst_text
from day0.reports.clean import clean
from day0.reports.model_check import ModelTest, model_tests
from day0.reports.stages import judge_stages
from day0.reports.summary import Stage

__all__ = ["render_junit"]

Result = Literal["passed", "failure", "error", "skipped"]

_RESULTS: dict[str, Result] = {
    "pass": "passed",
    "fell_back": "skipped",  # right, but no proof for the device
    "skipped": "skipped",
    "xfail": "skipped",
    "fail": "failure",
    "undelegated": "failure",
    "xpass": "failure",
    "crashed": "error",
    "hung": "error",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Test:
    """One testcase before it is XML."""

    group: str
    name: str
    result: Result
    kind: str = ""
    message: str = ""
    details: tuple[str, ...] = ()


def render_junit(bundle: Bundle) -> str:
    """Return the XML. A run that is incomplete or out of date has an error, so that no gate takes it for green."""
    root = ElementTree.Element("testsuites", name=clean(bundle.name))
    for stage in judge_stages(bundle):
        _suite(root, stage, tuple(_tests(bundle, stage)))
    for kind in ("tests", "failures", "errors", "skipped"):
        root.set(kind, str(sum(int(suite.get(kind, "0")) for suite in root)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False).join(
        ('<?xml version="1.0" encoding="UTF-8"?>\n', "\n")
    )


def _suite(root: ElementTree.Element, stage: Stage, tests: tuple[_Test, ...]) -> None:
    def count(result: Result) -> str:
        return str(sum(test.result == result for test in tests))

    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=f"day0.{stage.name}",
        tests=str(len(tests)),
        failures=count("failure"),
        errors=count("error"),
        skipped=count("skipped"),
    )
    for test in tests:
        _testcase(suite, stage.name, test)


def _testcase(suite: ElementTree.Element, stage: str, test: _Test) -> None:
    group = f"day0.{stage}.{clean(test.group)}" if test.group else f"day0.{stage}"
    case = ElementTree.SubElement(suite, "testcase", classname=group, name=clean(test.name))
    details = "\n".join(clean(line) for line in test.details if line)
    if test.result == "passed":
        if details or test.message:
            ElementTree.SubElement(case, "system-out").text = "\n".join(
                part for part in (clean(test.message), details) if part
            )
        return
    child = ElementTree.SubElement(case, test.result, message=clean(test.message))
    if test.kind:
        child.set("type", clean(test.kind))
    child.text = details or None


def _tests(bundle: Bundle, stage: Stage) -> Iterator[_Test]:
    if stage.status == "missing" and stage.blocked_by:
        yield _Test(group="", name=stage.file, result="skipped", kind="not_run", message=stage.headline)
    elif stage.status in ("missing", "stale"):
        yield _Test(
            group="",
            name=stage.file,
            result="error",
            kind=stage.status,
            message=stage.headline,
            details=(f"make it with: {stage.command}",),
        )
    else:
        makers = {"trace": _trace, "inventory": _inventory, "register": _register, "check": _check, "canary": _canary}
        tests = tuple(makers[stage.name](bundle))
        yield from tests
        if stage.status == "fail" and not any(test.result in ("failure", "error") for test in tests):
            yield _Test(group="", name=stage.file, result="failure", kind="stage", message="; ".join(stage.problems))


def _trace(bundle: Bundle) -> Iterator[_Test]:
    for phase in bundle.trace.phases:
        result: Result = "passed" if phase.calls else "skipped"
        facts = f"{phase.calls} calls, batch {phase.batch}, {phase.tokens} tokens after {phase.context}"
        yield _Test(group="", name=phase.name, result=result, kind="not_traced", message=phase.reason, details=(facts,))


def _inventory(bundle: Bundle) -> Iterator[_Test]:
    """One test for each signature that is a gap. An open one is a finding here and fails in `register`."""
    chosen = {name: str(entry.identity) for entry in _locked(bundle) for name in entry.signatures}
    for entry in bundle.inventory.entries if bundle.inventory else ():
        if entry.is_gap:
            yield _gap(entry, chosen.get(entry.id, ""))


def _locked(bundle: Bundle) -> Iterable[LockEntry]:
    return bundle.lock.entries if bundle.lock else ()


def _gap(entry: InventoryEntry, chosen: str) -> _Test:
    return _Test(
        group=entry.op,
        name=f"{entry.shapes} {entry.id}",
        result="passed" if chosen else "skipped",
        kind=entry.device_verdict,
        message=f"closed by {chosen}" if chosen else f"open gap: {entry.reason}",
        details=(entry.reason, f"{entry.calls} calls, first in {entry.module or 'the model'} {entry.source}"),
    )


def _register(bundle: Bundle) -> Iterator[_Test]:
    for entry in _locked(bundle):
        yield _Test(
            group=entry.operator,
            name=", ".join(entry.dtypes) or "no tensors",
            result="passed",
            message=f"{entry.kind} {entry.identity}",
            details=tuple(
                f"{'took' if one.accepted else 'refused'} {one.candidate}: {one.reason}" for one in entry.decisions
            ),
        )
    for gap in bundle.lock.gaps if bundle.lock else ():
        yield _Test(
            group=gap.operator,
            name=", ".join(gap.dtypes) or "no tensors",
            result="failure",
            kind="open_gap",
            message=gap.reason,
            details=tuple(f"refused {one.candidate}: {one.reason}" for one in gap.decisions) or ("no candidate",),
        )


def _check(bundle: Bundle) -> Iterator[_Test]:
    yield from (_case(case) for case in (bundle.numerics.cases if bundle.numerics else ()))
    if bundle.numerics is not None and bundle.numerics.model is not None:
        yield from (_model(one) for one in model_tests(bundle.numerics.model))


def _model(one: ModelTest) -> _Test:
    result: Result = "skipped" if one.skipped else "passed" if one.passed else "failure"
    return _Test(group="model", name=one.name, result=result, kind="model", message=one.message)


def _case(case: CaseResult) -> _Test:
    figures = f"error {case.error}, dtype's own {case.yardstick}, limit {case.limit}, golden {case.golden or 'none'}"
    quiet = case.status == "pass"
    return _Test(
        group=case.op,
        name=f"{case.shapes} [{case.regime}, seed {case.seed}] {case.signature}",
        result=_result(case),
        kind=case.status,
        message="" if quiet else f"{case.rule}: {case.reason}",
        details=() if quiet else (f"implementation {case.implementation}", figures, worst_text(case), *_more(case)),
    )


def _result(case: CaseResult) -> Result:
    """Return what CI shows: a kernel that went to the CPU in silence is no skipped test."""
    found = _RESULTS[case.status]
    return "failure" if case.failed and found == "skipped" else found


def _more(case: CaseResult) -> Iterator[str]:
    if case.failed and case.needed is not None:
        yield f"smallest limit that would have passed: {case.needed:.3g}"
    yield from case.notes
    if case.reproducer:
        yield f"day0 repro {case.reproducer}, below the run folder"


def _canary(bundle: Bundle) -> Iterator[_Test]:
    return (_step(stage) for stage in (bundle.canary.stages if bundle.canary else ()))


def _gate_text(gate: GateResult) -> str:
    value = "not measured" if gate.value is None else gate.value
    said = {"successful": "met", "failed": "not met", "inconclusive": f"not decided: {gate.reason}"}[gate.verdict]
    return f"{gate.metric} {value} {gate.rule} {gate.limit:g}: {said}"


def _step(stage: StageResult) -> _Test:
    # A gate that was missed is a failure; a stage that could not measure at all is an error.
    broken: Result = "failure" if any(not gate.passed for gate in stage.gates) else "error"
    results: dict[str, Result] = {"pass": "passed", "fail": broken, "skipped": "skipped"}
    return _Test(
        group="",
        name=stage.name,
        result=results[stage.status],
        kind="gate" if broken == "failure" else stage.status,
        message=stage.reason,
        details=(
            *(_gate_text(gate) for gate in stage.gates),
            stage.diverged and f"first to go wrong: {stage.diverged}",
        ),
    )

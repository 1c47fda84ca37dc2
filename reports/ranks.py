"""A record of ranks as JUnit XML: a suite for each run, with a test for each gate and one for each rank."""

from __future__ import annotations

from xml.etree import ElementTree

from day0.records import GateResult, RankResult, RanksReport, RanksRun
from day0.reports.clean import clean

__all__ = ["render_ranks_junit"]

_TAGS = (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))


def render_ranks_junit(report: RanksReport) -> str:
    """Return the XML. A suite is red exactly where its run failed; a rank that only had to stop is skipped."""
    root = ElementTree.Element("testsuites", name=clean(f"day0.ranks {report.model}"))
    for run in report.runs:
        _suite(root, report, run)
    for kind, _ in (("tests", ""), *_TAGS):
        root.set(kind, str(sum(int(suite.get(kind, "0")) for suite in root)))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(root: ElementTree.Element, report: RanksReport, run: RanksRun) -> None:
    experts = " whole experts" if run.whole_experts else ""
    planted = f" planted {run.planted}" if run.planted else ""
    name = f"day0.ranks {report.model} on {report.device}: {run.ranks}{experts}{planted}"
    suite = ElementTree.SubElement(root, "testsuite", name=clean(name))
    group = f"day0.ranks.{run.ranks}"
    for gate in run.gates:
        _gate(suite, group, gate)
    for result in run.results:
        _rank(suite, group, result)
    red = any(suite.findall(f"testcase/{tag}") for tag in ("failure", "error"))
    if run.status == "fail" and not red:
        case = ElementTree.SubElement(suite, "testcase", classname=group, name="run")
        ElementTree.SubElement(case, "failure", message=clean("; ".join(run.reasons)))
    for kind, tag in _TAGS:
        suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite)))


def _gate(suite: ElementTree.Element, group: str, gate: GateResult) -> None:
    name = f"{gate.metric} {gate.rule} {gate.limit:g}"
    case = ElementTree.SubElement(suite, "testcase", classname=f"{group}.gates", name=clean(name))
    tags = {"failed": "failure", "inconclusive": "skipped" if gate.passed else "error"}
    if gate.verdict in tags:
        ElementTree.SubElement(case, tags[gate.verdict], message=clean(gate.reason))


def _rank(suite: ElementTree.Element, group: str, result: RankResult) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=f"{group}.ranks", name=f"rank {result.rank}")
    tags = {"died": "error", "hung": "error", "raised": "error", "stopped": "skipped"}
    if result.status in tags:
        where = f" in {result.phase}" if result.phase else ""
        found = ElementTree.SubElement(
            case, tags[result.status], message=clean(f"{result.status}{where}: {result.reason}")
        )
        found.text = "\n".join(clean(line) for line in result.log_tail) or None
    elif result.first_divergent:
        message = clean(f"{result.first_divergent}: {result.divergence}")
        ElementTree.SubElement(case, "failure", message=message)

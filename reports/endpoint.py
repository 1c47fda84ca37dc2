"""A server's record as JUnit XML: a test for each gate, and one for each prompt."""

from __future__ import annotations

from xml.etree import ElementTree

from day0.records import EndpointPrompt, EndpointReport, GateResult
from day0.reports.clean import clean

__all__ = ["render_endpoint_junit"]


def render_endpoint_junit(report: EndpointReport) -> str:
    """Return the XML. What could not be decided is an error, so that no gate of a CI takes it for green."""
    suite = ElementTree.Element("testsuite", name=clean(f"day0.endpoint {report.model}"))
    for gate in report.gates:
        _gate(suite, gate)
    for one in report.results:
        _prompt(suite, one)
    for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite)))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _gate(suite: ElementTree.Element, gate: GateResult) -> None:
    name = f"{gate.metric} {gate.rule} {gate.limit:g}"
    case = ElementTree.SubElement(suite, "testcase", classname="day0.endpoint.gates", name=clean(name))
    tags = {"failed": "failure", "inconclusive": "skipped" if gate.passed else "error"}
    if gate.verdict in tags:
        ElementTree.SubElement(case, tags[gate.verdict], message=clean(gate.reason))


def _prompt(suite: ElementTree.Element, one: EndpointPrompt) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname="day0.endpoint.prompts", name=clean(one.name))
    tags = {"fail": "failure", "unanswered": "error", "not_judged": "skipped"}
    if one.status in tags:
        found = ElementTree.SubElement(case, tags[one.status], message=clean(one.reason))
        found.text = clean("\n".join((f"server: {one.text}", f"reference: {one.expected_text}", one.reproduce)))

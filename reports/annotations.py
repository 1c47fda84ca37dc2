"""A run for pipelines: annotations and the job summary of GitHub, the code quality report of GitLab."""

from __future__ import annotations

import json
from collections.abc import Iterable

from day0.hashing import hash_json
from day0.reports.clean import clean
from day0.reports.mdtext import code, prose, table_lines
from day0.reports.problems import Level, Problem, problems
from day0.reports.summary import Summary
from day0.reports.words import tone, word

__all__ = ["SHOWN", "github_annotations", "github_failure", "github_summary", "gitlab_quality"]

SHOWN = 10
"""Annotations of one level that GitHub takes from one step; what is beyond, it drops without a word."""

SUMMARY_ROWS = 20
"""Rows of a table in the job summary; the report has all of them."""


def github_annotations(summary: Summary, *, root: str = "") -> str:
    """Return workflow commands, one a line, ending in a newline: errors, then warnings, at most ten of each.

    The tenth counts what was left out. A run with nothing to show is one notice. `root` is the run folder, which is
    put before the names of records. No text can begin a command of its own: line ends and `%` are escaped, in
    properties `:` and `,` too, and what no terminal should see is replaced.
    """
    found = problems(summary, root=root)
    lines = [*_commands("error", found), *_commands("warning", found)]
    if not lines:
        lines = [_command("notice", {"title": f"{summary.name}: ready"}, summary.why)]
    return "\n".join(lines) + "\n"


def github_failure(title: str, message: str) -> str:
    """Return one workflow command, ending in a newline: an error of a run that has no report to speak for it."""
    return _command("error", {"title": title}, message) + "\n"


def _commands(level: Level, found: Iterable[Problem]) -> list[str]:
    mine = [one for one in found if one.level == level]
    shown = mine if len(mine) <= SHOWN else mine[: SHOWN - 1]
    lines = [
        _command(level, {"file": one.file, "line": str(one.line), "title": one.title}, one.message) for one in shown
    ]
    if len(shown) < len(mine):
        left = f"{len(mine) - len(shown):,} more, see report.md in the run folder's report"
        lines.append(_command(level, {"title": "day0"}, left))
    return lines


def _command(name: str, properties: dict[str, str], message: str) -> str:
    said = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {said}::{_data(message)}"


def _data(text: str) -> str:
    return clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


_SEVERITY = {"day0.check.crashed": "blocker", "day0.check.hung": "blocker", "day0.caveat": "info"}


def gitlab_quality(summary: Summary, *, root: str = "") -> str:
    """Return the code quality report that GitLab reads from `artifacts: reports: codequality`, as JSON text.

    A fingerprint stays the same from run to run, so that GitLab can say what is new in a merge request; of several
    problems with one fingerprint the first is kept.
    """
    entries = {one["fingerprint"]: one for one in map(_entry, reversed(problems(summary, root=root)))}
    return json.dumps(list(reversed(entries.values())), indent=1, ensure_ascii=False) + "\n"


def _entry(one: Problem) -> dict[str, object]:
    severity = _SEVERITY.get(one.check, "critical" if one.level == "error" else "minor")
    return {
        "description": clean(f"{one.title}: {one.message}"),
        "check_name": clean(one.check),
        "fingerprint": hash_json([one.check, one.file, one.key]).removeprefix("sha256:"),
        "severity": severity,
        "location": {"path": clean(one.file), "lines": {"begin": one.line}},
    }


def github_summary(summary: Summary) -> str:
    """Return Markdown for the job's page: the verdict, the five stages, what to do next, what keeps it from passing."""
    verdict = "✓ Ready" if summary.can_run else "✗ Not ready"
    on = f" on {_prose(summary.device)}" if summary.device else ""
    parts = [f"## {_prose(summary.name)}: {_prose(summary.model)}{on}", f"**{verdict}**: {_prose(summary.why)}."]
    signs = {"good": "✓", "bad": "✗", "wait": "–"}
    rows = [[one.name, f"{signs[tone(one.status)]} {word(one.status)}", _prose(one.headline)] for one in summary.stages]
    parts.append("\n".join(table_lines(["stage", "status", "what came out"], rows, [False] * 3)))
    parts += [_actions(summary), _problems("Keeps it from passing", "error", summary)]
    parts.append(_problems("Left open", "warning", summary))
    return "\n\n".join(part for part in parts if part) + "\n"


def _prose(text: str) -> str:
    return prose(clean(text))


def _actions(summary: Summary) -> str:
    if not summary.next:
        return ""
    lines = ["### What to do next", ""]
    for number, one in enumerate(summary.next, start=1):
        lines += [f"{number}. {_prose(one.what)}", f"   - {code(clean(one.command))}"]
    return "\n".join(lines)


def _problems(title: str, level: Level, summary: Summary) -> str:
    mine = [one for one in problems(summary) if one.level == level]
    if not mine:
        return ""
    lines = [f"### {title}", "", *(f"- {_prose(one.title)}: {_prose(one.message)}" for one in mine)]
    more = len(mine) - SUMMARY_ROWS
    return "\n".join([*lines[: SUMMARY_ROWS + 2], *([f"- and {more:,} more, see report.md"] if more > 0 else [])])

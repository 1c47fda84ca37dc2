"""How good the check is: `day0 selftest` on the simulated device; `--write-docs` puts the tables into the documentation.

Some minutes on two cores. `--only NAME` measures a part, which is never written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from day0.analyzers.selftest.run import run_selftest
from day0.analyzers.selftest.table import HOW_WORDS, alarm_rows, detection_rows, how_rows, missed
from day0.devices.profile import load_profile
from day0.records import FaultScore, SelftestReport

PAGE = Path(__file__).resolve().parents[1] / "docs" / "checker_power.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables and the figures, and write the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="sim")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--write-docs", action="store_true")
    asked = parser.parse_args(arguments)
    report = run_selftest(load_profile(asked.device), seeds=asked.seeds, only=asked.only, jobs=asked.jobs)
    text = tables(report)
    print(text)
    if asked.write_docs and not asked.only:
        write(text)
    found = sum(one.is_found for one in report.faults)
    print(f"figure: planted_faults {len(report.faults)}")
    print(f"figure: detection {found / max(1, len(report.faults)):.4f}")
    print(f"figure: false_alarms {sum(len(one.alarms) for one in report.right)}")
    return 0


def tables(report: SelftestReport) -> str:
    """Return the tables in Markdown."""
    parts = [
        f"Device `{report.device}`, {len(report.faults)} planted faults; what is right over {report.seeds} seeds.",
        "### Faults found\n\n" + markdown(detection_rows(report)),
        "### False alarms\n\n" + markdown(alarm_rows(report)),
        "### How they were found\n\n" + markdown([("evidence", "faults"), *how_rows(report)]),
        "### Missed\n\n" + _missed(report),
        "### Every fault\n\n" + markdown([_HEADER, *(_row(one, report) for one in report.faults)]),
    ]
    alarms = [(right.subject, alarm) for right in report.right for alarm in right.alarms]
    if alarms:
        rows = [(subject, one.op, one.case, one.rule, one.reason) for subject, one in alarms]
        parts.append(
            "### Every false alarm\n\n" + markdown([("what is right", "operator", "case", "rule", "reason"), *rows])
        )
    return "\n\n".join(parts) + "\n"


def _missed(report: SelftestReport) -> str:
    lost = [
        (one.name, one.does, one.operator.reason or one.model.reason, one.source.split()[0]) for one in missed(report)
    ]
    return markdown([("fault", "what it does", "why", "report"), *lost]) if lost else "None."


_HEADER = ("fault", "family", "half", "operators", "rule", "cases", "models", "usual rules that find it")


def _row(one: FaultScore, report: SelftestReport) -> tuple[str, ...]:
    usual = ", ".join(rule for rule in report.usual if one.usual.get(rule)) or ("-" if not one.usual else "none")
    return (
        one.name,
        one.family,
        "held out" if one.held_out else "open",
        HOW_WORDS[one.operator.how],
        one.operator.rule or "-",
        f"{one.operator.found}/{one.operator.reached}",
        one.model.first or HOW_WORDS[one.model.how],
        usual,
    )


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def write(text: str) -> None:
    """Put the tables between their marks, and leave what people have written around them."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

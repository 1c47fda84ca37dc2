"""`day0 selftest`: how good the check itself is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from day0.cli import show_selftest
from day0.cli.session import environment
from day0.cli.talk import Talk
from day0.codec import encode
from day0.errors import ExitCode

if TYPE_CHECKING:
    from day0.records import SelftestReport

__all__ = ["DETECTION", "has_passed", "selftest"]

DETECTION = 0.99
"""Share of the planted faults that have to be found."""


def selftest(*, device: str, seeds: int, only: list[str], jobs: int, usual: bool, json: bool) -> int:
    """Plant, check, show; the record goes to stdout with `--json`."""
    from day0.analyzers.selftest.selection import refuse_device, select_faults
    from day0.devices.profile import load_profile

    talk = Talk(as_json=json)
    profile = load_profile(device)
    refuse_device(profile)
    select_faults(only)
    from day0.analyzers.selftest.run import run_selftest  # takes seconds, and bad arguments none

    with talk.busy("selftest"):
        report = run_selftest(profile, seeds=seeds, only=only, jobs=jobs, usual=usual, progress=talk.progress)
    show_selftest.report(talk, report)
    if json:
        print(encode(report, inputs={}, environment=environment()), end="")
    return int(ExitCode.OK if has_passed(report) else ExitCode.GATE_FAILED)


def has_passed(report: SelftestReport) -> bool:
    """Say whether enough is found, and nothing right is reported."""
    found = sum(one.is_found for one in report.faults)
    return found >= DETECTION * len(report.faults) and not any(one.alarms for one in report.right)

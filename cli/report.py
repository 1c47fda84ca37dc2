"""`day0 report`: the report of a run folder as HTML, Markdown, JSON and JUnit, and what pipelines show of it."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from day0.cli.pipelines import commands_stopped, show_in_pipeline
from day0.cli.report_beside import peaks_of, read_beside
from day0.cli.rundir import FILES, RunFolder, write_atomically
from day0.cli.session import environment
from day0.cli.talk import Talk, safe
from day0.cli.verifying.manifest import write_manifest
from day0.codec import Envelope
from day0.errors import ExitCode
from day0.records import CanaryReport, Inventory, Lock, NumericsReport, Record, Trace
from day0.reports.annotations import github_annotations, github_summary, gitlab_quality
from day0.reports.bundle import Bundle
from day0.reports.clean import path_below
from day0.reports.html import render_html
from day0.reports.jsonreport import render_json
from day0.reports.junit import render_junit
from day0.reports.markdown import render_markdown
from day0.reports.summarise import PLANTED, summarise

__all__ = ["read_bundle", "report", "write_report"]


def report(*, run: Path, json: bool, ci: bool = False) -> int:
    """`day0 report`: write the report from what is there; with `ci` show it to the pipeline."""
    talk, folder = Talk(as_json=json), RunFolder(run)
    plan = folder.read_plan()
    folder.need(Trace)
    with commands_stopped(as_json=json) if ci else nullcontext():
        with folder.held(), talk.busy("report"):
            page = write_report(folder, plan.name if plan else run.name, talk.progress)
        talk.say(f"report: {safe(page)}")
    if ci:
        show_in_pipeline(page.parent, as_json=json)
    if json:
        print((page.parent / "report.json").read_text(encoding="utf-8"), end="")
    return int(ExitCode.OK)


def write_report(folder: RunFolder, name: str, progress: Callable[[str], None] = lambda _: None) -> Path:
    """Render every format from what the folder holds, hash every file in it, and return the path of the HTML page."""
    bundle = read_bundle(folder, name)
    target = folder.file("report")
    write_atomically(target / "report.md", render_markdown(bundle))
    write_atomically(target / "report.json", jsonlib.dumps(render_json(bundle), indent=1, ensure_ascii=False) + "\n")
    write_atomically(target / "junit.xml", render_junit(bundle))
    write_atomically(target / "report.html", render_html(bundle))
    _write_for_pipelines(folder, bundle)
    write_manifest(folder, environment(), progress)
    return target / "report.html"


def _write_for_pipelines(folder: RunFolder, bundle: Bundle) -> None:
    summary, target = summarise(bundle), folder.file("report")
    path = folder.path.as_posix()
    # A pipeline knows files below its own folder only.
    root = path if path_below(path) == path else ""
    write_atomically(target / "annotations.txt", github_annotations(summary, root=root))
    write_atomically(target / "gitlab.json", gitlab_quality(summary, root=root))
    write_atomically(target / "summary.md", github_summary(summary))


def _planted(found: dict[type[Record], Envelope[Any] | None]) -> dict[str, str]:
    """Say first of all what was planted: such a run says nothing about a device."""
    planted = {FILES[kind][0]: one.environment.get("planted") for kind, one in found.items() if one is not None}
    return {f"{PLANTED}{stage}": names for stage, names in planted.items() if names}


def read_bundle(folder: RunFolder, name: str) -> Bundle:
    """Read all records that are there. Raises Day0Error where even the trace is missing, or one is damaged."""
    trace = folder.need(Trace)
    inventory, lock = folder.read(Inventory), folder.read(Lock)
    numerics, canary = folder.read(NumericsReport), folder.read(CanaryReport)
    found: dict[type[Record], Envelope[Any] | None] = {
        Trace: trace,
        Inventory: inventory,
        Lock: lock,
        NumericsReport: numerics,
        CanaryReport: canary,
    }
    beside = read_beside(folder)
    return Bundle(
        name=name,
        run=str(folder.path),
        trace=trace.record,
        inventory=inventory.record if inventory else None,
        lock=lock.record if lock else None,
        numerics=numerics.record if numerics else None,
        canary=canary.record if canary else None,
        fit=beside.fit,
        endpoint=beside.endpoint,
        ranks=beside.ranks,
        damaged=beside.damaged,
        peaks=peaks_of(inventory),
        environment={**environment(), **trace.environment, **_planted(found)},
        hashes={FILES[kind][1]: one.digest for kind, one in found.items() if one is not None} | beside.hashes,
    )

"""`day0 report`: the report of a run folder as HTML, Markdown, JSON and JUnit, and what pipelines show of it."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

from day0.cli.pipelines import commands_stopped, show_in_pipeline
from day0.cli.rundir import FILES, RunFolder, write_atomically
from day0.cli.session import environment
from day0.cli.talk import Talk, safe
from day0.cli.verifying.manifest import write_manifest
from day0.codec import Envelope, decode
from day0.errors import Day0Error, ExitCode
from day0.hashing import hash_json
from day0.records import (
    CanaryReport,
    EndpointReport,
    FitReport,
    Inventory,
    Lock,
    NumericsReport,
    RanksReport,
    Record,
    Trace,
)
from day0.reports.annotations import github_annotations, github_summary, gitlab_quality
from day0.reports.beside import FILES as BESIDE
from day0.reports.bundle import Bundle, Peaks
from day0.reports.clean import path_below
from day0.reports.html import render_html
from day0.reports.jsonreport import render_json
from day0.reports.junit import render_junit
from day0.reports.markdown import render_markdown
from day0.reports.summarise import PLANTED, summarise

__all__ = ["read_bundle", "report", "write_report"]

R = TypeVar("R", bound=Record)


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
    beside = _Beside(folder)
    fit, endpoint, ranks = beside.read(FitReport), beside.read(EndpointReport), beside.read(RanksReport)
    return Bundle(
        name=name,
        run=str(folder.path),
        trace=trace.record,
        inventory=inventory.record if inventory else None,
        lock=lock.record if lock else None,
        numerics=numerics.record if numerics else None,
        canary=canary.record if canary else None,
        fit=fit,
        endpoint=endpoint,
        ranks=ranks,
        damaged=beside.damaged,
        peaks=_peaks(inventory),
        environment={**environment(), **trace.environment, **_planted(found)},
        hashes={FILES[kind][1]: one.digest for kind, one in found.items() if one is not None} | beside.hashes,
    )


_NAMES: dict[type[Record], str] = {FitReport: "fit", EndpointReport: "endpoint", RanksReport: "ranks"}


class _Beside:
    """Reads the records beside the stages. A damaged one is told and keeps nobody from the report of the rest."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.damaged: dict[str, str] = {}
        self.hashes: dict[str, str] = {}

    def read(self, kind: type[R]) -> R | None:
        """Return a record; None where it is not there or cannot be read."""
        name = BESIDE[_NAMES[kind]]
        try:
            text = self._folder.read_text(name)
            if text is None:
                return None
            found = decode(kind, text, where=name, remake=f"day0 {_NAMES[kind]}")
        except Day0Error as error:
            self.damaged[name] = error.what
            return None
        self.hashes[name] = found.digest
        return found.record


def _peaks(inventory: Envelope[Inventory] | None) -> Peaks | None:
    """Return what the device could do by its profile, if that is still the one of the inventory."""
    from day0.devices.profile import load_profile

    if inventory is None:
        return None
    try:
        profile = load_profile(inventory.record.device)
    except Day0Error:
        return None  # a profile of somebody's own, which is not here
    if hash_json(profile.model_dump(mode="json")) != inventory.inputs.get("device"):
        return None
    rates = {str(dtype): rate * 1e12 for dtype, rate in profile.tflops.items()}
    return Peaks(bandwidth=profile.bandwidth_gb_s * 1e9, rates=rates)

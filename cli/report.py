"""Write the report of a run folder: HTML, Markdown, JSON and JUnit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from day0.cli.rundir import FILES, RunFolder, write_atomically
from day0.cli.session import environment
from day0.codec import Envelope, decode
from day0.errors import Day0Error
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
from day0.reports.beside import FILES as BESIDE
from day0.reports.bundle import Bundle, Peaks
from day0.reports.html import render_html
from day0.reports.jsonreport import render_json
from day0.reports.junit import render_junit
from day0.reports.markdown import render_markdown
from day0.reports.summarise import PLANTED

__all__ = ["read_bundle", "write_report"]

R = TypeVar("R", bound=Record)


def write_report(folder: RunFolder, name: str) -> Path:
    """Render every format from what the folder holds and return the path of the HTML page."""
    bundle = read_bundle(folder, name)
    target = folder.file("report")
    write_atomically(target / "report.md", render_markdown(bundle))
    write_atomically(target / "report.json", json.dumps(render_json(bundle), indent=1, ensure_ascii=False) + "\n")
    write_atomically(target / "junit.xml", render_junit(bundle))
    write_atomically(target / "report.html", render_html(bundle))
    return target / "report.html"


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

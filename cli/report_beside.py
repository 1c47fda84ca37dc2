"""What a report reads beside the stages: fit, server, ranks, and the device's peaks by its profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from day0.cli.rundir import RunFolder
from day0.codec import Envelope, decode
from day0.devices.profile import load_profile
from day0.errors import Day0Error
from day0.hashing import hash_json
from day0.records import EndpointReport, FitReport, Inventory, RanksReport, Record
from day0.reports.beside import FILES
from day0.reports.bundle import Peaks

__all__ = ["BesideRecords", "peaks_of", "read_beside"]

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, kw_only=True, slots=True)
class BesideRecords:
    """The records beside the stages, as many as there are and can be read."""

    fit: FitReport | None
    endpoint: EndpointReport | None
    ranks: RanksReport | None
    damaged: dict[str, str]
    """Why a file cannot be read, by its name."""
    hashes: dict[str, str]


def read_beside(folder: RunFolder) -> BesideRecords:
    """Read what is there. A damaged record is told and keeps nobody from the report of the rest."""
    damaged: dict[str, str] = {}
    hashes: dict[str, str] = {}

    def read(kind: type[R], name: str) -> R | None:
        file = FILES[name]
        try:
            text = folder.read_text(file)
            if text is None:
                return None
            found = decode(kind, text, where=file, remake=f"day0 {name}")
        except Day0Error as error:
            damaged[file] = error.what
            return None
        hashes[file] = found.digest
        return found.record

    return BesideRecords(
        fit=read(FitReport, "fit"),
        endpoint=read(EndpointReport, "endpoint"),
        ranks=read(RanksReport, "ranks"),
        damaged=damaged,
        hashes=hashes,
    )


def peaks_of(inventory: Envelope[Inventory] | None) -> Peaks | None:
    """Return what the device could do by its profile, if that is still the one of the inventory."""
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

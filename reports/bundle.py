"""What a report is made from: the records of one run, as many as there are."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from day0.records import (
    CanaryReport,
    EndpointReport,
    FitReport,
    Inventory,
    Lock,
    NumericsReport,
    RanksReport,
    Trace,
)

__all__ = ["STAGES", "Bundle", "Peaks", "StageInfo"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageInfo:
    """A stage, what it answers and the file that holds its record."""

    name: str
    question: str
    file: str


STAGES: tuple[StageInfo, ...] = (
    StageInfo(name="trace", question="What does the model call?", file="trace.json"),
    StageInfo(name="inventory", question="What does the device lack?", file="inventory.json"),
    StageInfo(name="register", question="What stands in for it?", file="ops.lock"),
    StageInfo(name="check", question="Are the numbers right?", file="numerics.json"),
    StageInfo(name="canary", question="Does the model run?", file="canary.json"),
)
"""The five stages in their order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peaks:
    """What a device could do at best, by its profile."""

    bandwidth: float
    """Bytes per second; 0 where nobody says."""
    rates: dict[str, float]
    """Operations per second by dtype."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Bundle:
    """The records of one run. A stage that was not reached is None, and the report says how to make it.

    Compared by identity, so that what all formats need of it is found once.
    """

    name: str
    trace: Trace
    inventory: Inventory | None = None
    lock: Lock | None = None
    numerics: NumericsReport | None = None
    canary: CanaryReport | None = None
    fit: FitReport | None = None
    endpoint: EndpointReport | None = None
    ranks: RanksReport | None = None
    damaged: dict[str, str] = field(default_factory=dict)
    """Records beside the stages that cannot be read, by file name, with the reason."""
    peaks: Peaks | None = None
    """None where the device's profile is not the one that the inventory was made with."""
    environment: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    """Hash of each record by its file name."""
    run: str = ""
    """The run folder as the user named it, for commands to copy; `RUN` stands in their place where it is not known."""

    @property
    def device(self) -> str:
        """Name of the device that the records speak of; empty before there is an inventory."""
        for record in (self.inventory, self.lock, self.numerics, self.canary):
            if record is not None:
                return record.device
        return ""

    def command(self, stage: str, *options: str) -> str:
        """Return the command that makes a stage's record."""
        asks_device = ("--device", "NAME") if stage == "inventory" and not self.device else ()
        return shlex.join(["day0", stage, "--run", self.run or "RUN", *asks_device, *options])

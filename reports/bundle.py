"""What a report is made from: the records of one run, as many as there are."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from day0.records import CanaryReport, Inventory, Lock, NumericsReport, Trace

__all__ = ["STAGES", "Bundle", "StageInfo"]


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
class Bundle:
    """The records of one run. A stage that was not reached is None, and the report says how to make it."""

    name: str
    trace: Trace
    inventory: Inventory | None = None
    lock: Lock | None = None
    numerics: NumericsReport | None = None
    canary: CanaryReport | None = None
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

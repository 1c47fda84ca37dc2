"""What became of the model on the device."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, model_validator

from day0.records._base import Record

__all__ = ["CanaryReport", "FigureResult", "GateResult", "LastGood", "OperatorFigures", "Receipt", "StageResult"]


class GateResult(Record):
    """A rule that a stage had to satisfy."""

    metric: str
    rule: Literal["<=", ">=", "=="]
    limit: float
    value: float | None
    """None: not measured."""
    low: float | None = None
    high: float | None = None
    """The interval in which the true value lies, where there is one."""
    samples: int | None = None
    verdict: Literal["successful", "failed", "inconclusive"]
    """Whether the whole interval keeps the rule, or breaks it, or neither."""
    inconclusive: Literal["fail", "pass", "warn"] = "warn"
    """What an undecided gate does to its stage."""
    passed: bool
    """Whether the stage may pass: successful, or undecided where that does not fail."""
    reason: str = ""

    @model_validator(mode="before")
    @classmethod
    def _before_verdicts(cls, data: JsonValue) -> JsonValue:
        # Records of day0 before decision 0015 knew two verdicts.
        if isinstance(data, dict) and "verdict" not in data and "passed" in data:
            return {**data, "verdict": "successful" if data["passed"] else "failed"}
        return data


class FigureResult(Record):
    """A figure that is more than a number."""

    value: float | None
    low: float | None = None
    high: float | None = None
    samples: int | None = None
    unit: str = ""
    why: str = ""
    """Why it was not measured."""


class Receipt(Record):
    """Proof that an implementation ran: who, how often, where."""

    identity: str
    operator: str
    kind: str
    dtypes: tuple[str, ...] = ()
    """Of the tensors of its calls; with the operator they name the entry of the lock."""
    device: str
    calls: int
    captured: int = 0
    """How many of the calls were made while a CUDA graph was captured; its replays run without being counted."""
    where: dict[str, int] = Field(default_factory=dict)
    """Calls by the path of the module that was running; empty where nobody watched the modules."""
    process: str = ""
    """Which process wrote it, as `host:pid role`; empty for the process that wrote the report."""


class OperatorFigures(Record):
    """What one operator did in one pass of the model on the device."""

    operator: str
    calls: int
    clock: Literal["sim", "events", "wall"]
    """Simulated time, events of the device, or the host's clock with a wait after every call."""
    seconds: float
    """Of all calls together."""
    worst_seconds: float
    """Of the slowest call."""
    bytes: int
    """What has to be read and written."""
    flops: int
    bandwidth_share: float | None = None
    """Achieved bandwidth over the peak of the device's profile; None where it moves nothing or takes no time."""
    compute_share: float | None = None
    """Achieved rate over the profile's peak for the dtype; None where nobody counts operations."""
    implementation: str = "native"
    """Who computed it: the identity of the entry of the lock, or the device itself."""


class StageResult(Record):
    """One canary stage."""

    name: str
    title: str
    status: Literal["pass", "fail", "skipped"]
    reason: str
    skip: Literal["", "unfit", "failed", "not_asked"] = ""
    """Why it was skipped: the model has nothing for it, an earlier stage failed, or nobody asked for it."""
    gates: tuple[GateResult, ...] = ()
    warnings: tuple[str, ...] = ()
    """What has to be seen although the stage passed: gates that could not be decided."""
    metrics: dict[str, float] = Field(default_factory=dict)
    figures: dict[str, FigureResult] = Field(default_factory=dict)
    """Intervals, samples and units of those metrics that have them, and metrics that could not be measured."""
    receipts: tuple[Receipt, ...] = ()
    operators: tuple[OperatorFigures, ...] = ()
    """The slowest first."""
    evidence: str = ""
    """Path below the run folder."""
    diverged: str = ""
    """The operator or module that went wrong first."""
    kept: bool = False
    """Whether it was taken from an earlier run with the same inputs."""
    next_command: str = ""
    """What to run next, without the run folder."""


class LastGood(Record):
    """The lock that passed a canary last, of this model on this device."""

    lock: str
    """Hash of what it says."""
    file: str
    """Copy of it below the run folder."""
    when: str
    """UTC, ISO 8601."""


class CanaryReport(Record):
    """The stages in the order in which they widen."""

    device: str
    lock: str
    allow_unverified: bool
    stages: tuple[StageResult, ...]
    last_good: LastGood | None = None
    """Where to go back to after a failure; None where none passed before, or nothing failed."""

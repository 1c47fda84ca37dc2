"""What became of the model on the device."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, model_validator

from day0.records._base import Record

__all__ = ["CanaryReport", "FigureResult", "GateResult", "Receipt", "StageResult"]


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
    device: str
    calls: int
    captured: int = 0
    """How many of the calls were made while a CUDA graph was captured; its replays run without being counted."""
    where: dict[str, int] = Field(default_factory=dict)
    """Calls by the path of the module that was running; empty where nobody watched the modules."""
    process: str = ""
    """Which process wrote it, as `host:pid role`; empty for the process that wrote the report."""


class StageResult(Record):
    """One canary stage."""

    name: str
    title: str
    status: Literal["pass", "fail", "skipped"]
    reason: str
    gates: tuple[GateResult, ...] = ()
    warnings: tuple[str, ...] = ()
    """What has to be seen although the stage passed: gates that could not be decided."""
    metrics: dict[str, float] = Field(default_factory=dict)
    figures: dict[str, FigureResult] = Field(default_factory=dict)
    """Intervals, samples and units of those metrics that have them, and metrics that could not be measured."""
    receipts: tuple[Receipt, ...] = ()
    evidence: str = ""
    """Path below the run folder."""


class CanaryReport(Record):
    """The stages in the order in which they widen."""

    device: str
    lock: str
    allow_unverified: bool
    stages: tuple[StageResult, ...]

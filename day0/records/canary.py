"""What became of the model on the device."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from day0.records._base import Record

__all__ = ["CanaryReport", "GateResult", "Receipt", "StageResult"]


class GateResult(Record):
    """A rule that a stage had to satisfy."""

    metric: str
    rule: Literal["<=", ">=", "=="]
    limit: float
    value: float | None
    passed: bool
    reason: str = ""


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
    metrics: dict[str, float] = Field(default_factory=dict)
    receipts: tuple[Receipt, ...] = ()
    evidence: str = ""
    """Path below the run folder."""


class CanaryReport(Record):
    """The stages in the order in which they widen."""

    device: str
    lock: str
    allow_unverified: bool
    stages: tuple[StageResult, ...]

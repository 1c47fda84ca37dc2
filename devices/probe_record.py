"""What probing a device says, as plain data between processes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from day0.records import Record, Signature

__all__ = ["DeviceFacts", "Measured", "ProbedCall", "ProbedDtype", "Tried", "Way"]

Way = Literal["native", "storage", "composite", "composite_with_sync", "fallback", ""]
"""By which kernel it ran: the device's own, torch's composite one, or one of the CPU's by a fallback."""

Status = Literal["ran", "wrong", "refused", "crashed", "hung", "skipped"]


class Tried(Record):
    """The answer to one question."""

    status: Status
    reason: str = ""
    way: Way = ""
    leaf: str = ""
    """The operator that torch says is missing, where it says so."""
    error: float | None = None
    """Relative error against the CPU."""
    broken: bool = False
    """The device does not work any more in this process."""


class ProbedCall(Record):
    """One signature and what became of it."""

    signature: Signature
    result: Tried


class ProbedDtype(Record):
    """One dtype and whether the device holds it; its way is `storage` where nothing computes with it."""

    name: str
    result: Tried


class DeviceFacts(Record):
    """What the device and its software call themselves."""

    name: str
    driver: str = ""
    devices: int = 1
    memory_bytes: int = 0
    torch: str
    python: str
    platform: str


class Measured(Record):
    """Figures and habits; None where they were not measured, or could not be."""

    bandwidth_gb_s: float | None = None
    link_gb_s: float | None = None
    launch_us: float | None = None
    sync_us: float | None = None
    tflops: dict[str, float] = Field(default={})
    subnormals: Literal["keep", "flush"] | None = None
    matmul_inputs: Literal["exact", "tfloat32", "bfloat16"] | None = None
    """What float32 factors are rounded to."""
    accumulate: dict[str, str] = Field(default={})
    """By dtype of the factors: the dtype of the sum."""

"""How long a case may take, and how much memory of the host: generous, from what it costs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]

FLOOR_S = 10.0
"""A driver that wakes up, a library that loads: no call is judged by less."""
KERNEL_FLOOR_S = 60.0
"""A kernel that is not the device's own may compile for every new shape."""
FIRST_CALL_S = 300.0
"""And its first call may try many configurations, or build an extension."""
TIMES_REFERENCE = 50.0
"""Slower than the CPU by this factor is no device."""
SLOWEST_BYTES_PER_S = 50e6
"""A thousandth of what the slowest memory moves."""
REFERENCE_S = 120.0
REFERENCE_BYTES_PER_S = 1e6

HOST_FLOOR = 4 << 30
TIMES_CASE = 48
"""Arguments, goldens in float64, their partial sums, and what the rules make of them: in half types a running sum takes 37
times its arguments and results together, in float32 half as much (measured; a test holds it)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one case may take. `case_timeout_s` replaces what follows from the cost."""

    case_timeout_s: float | None = None
    max_bytes: int = 256 << 20
    host_bytes: int | None = None
    """Memory of the host beyond what a fresh worker has; None: from `max_bytes`."""

    def reference(self, size: int) -> float:
        """Return the seconds for inputs and goldens of a call that moves `size` bytes."""
        return REFERENCE_S + size / REFERENCE_BYTES_PER_S

    def device(self, size: int, reference_s: float, *, kernel: bool, first: bool) -> float:
        """Return the seconds for the call itself."""
        if self.case_timeout_s is not None:
            return self.case_timeout_s
        floor = FIRST_CALL_S if kernel and first else KERNEL_FLOOR_S if kernel else FLOOR_S
        return floor + TIMES_REFERENCE * reference_s + size / SLOWEST_BYTES_PER_S

    def judge(self, size: int, reference_s: float) -> float:
        """Return the seconds for what the rules compute."""
        return self.reference(size) + TIMES_REFERENCE * reference_s

    @property
    def host(self) -> int:
        """Bytes of the host's memory that a worker may take beyond what it began with."""
        return self.host_bytes if self.host_bytes is not None else max(HOST_FLOOR, TIMES_CASE * self.max_bytes)

"""What is measured around every stage: what a simulated device counts, memory, calls that the lock sent to the CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from day0.analyzers.canary.gates import Figure
from day0.devices.open import device_counts, memory_allocated
from day0.registry.receipts import ActiveLock

__all__ = ["Around", "begin"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Around:
    """The counters as they were when a stage began."""

    device: torch.device
    active: ActiveLock
    counts: dict[str, float]
    memory: int
    fallbacks: int

    def figures(self) -> dict[str, float | Figure]:
        """Return what has been counted since."""
        now = device_counts(self.device)
        # Simulated time has picoseconds; what is below comes from the subtraction.
        spent: dict[str, float | Figure] = {
            name: round(value - self.counts.get(name, 0.0), 12) for name, value in now.items()
        }
        spent["fallback_calls"] = float(self.active.fallbacks - self.fallbacks)
        return {**spent, **self._memory()}

    def _memory(self) -> dict[str, float | Figure]:
        peak = _asked(self.device, "max_memory_allocated")
        if peak is None:
            none = Figure(None, why=f"{self.device.type} has no counter of its memory")
            return {"memory_peak_bytes": none, "memory_growth_bytes": none}
        most = int(peak())
        gc.collect()  # what only a cycle holds is no growth
        return {
            "memory_peak_bytes": Figure(float(most), unit="B"),
            "memory_growth_bytes": Figure(float(memory_allocated(self.device) - self.memory), unit="B"),
        }


def begin(device: torch.device, active: ActiveLock) -> Around:
    """Read the counters; peaks of memory begin anew."""
    reset = _asked(device, "reset_peak_memory_stats")
    if reset is not None:
        reset()
    return Around(
        device=device,
        active=active,
        counts=device_counts(device),
        memory=memory_allocated(device),
        fallbacks=active.fallbacks,
    )


def _asked(device: torch.device, name: str) -> Callable[[], Any] | None:
    found: Callable[[], Any] | None = getattr(getattr(torch, device.type, None), name, None)
    return found

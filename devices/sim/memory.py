"""The memory of one simulated device: what is in use, what a caching allocator would keep, and the peaks of both."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["DeviceMemory"]


@dataclass(kw_only=True, slots=True)
class DeviceMemory:
    """All in bytes."""

    index: int
    allocated: int = 0
    peak: int = 0
    reserved: int = 0
    """What a caching allocator would keep: it gives nothing back until it is asked to."""
    peak_reserved: int = 0

    def take(self, size: int) -> None:
        """Count `size` more bytes, fewer where it is negative."""
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self.reserved = max(self.reserved, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def give_back(self, size: int) -> None:
        """Count memory that is not in use any more; it stays reserved."""
        self.allocated -= size

    def reset_peaks(self) -> None:
        """Let the peaks begin at what is in use now."""
        self.peak, self.peak_reserved = self.allocated, self.reserved

    def refuse_over(self, limit: int, size: int) -> None:
        """Raise torch.OutOfMemoryError if `size` more bytes do not fit into `limit`."""
        if self.allocated + size > limit:
            raise torch.OutOfMemoryError(
                f"sim out of memory. Tried to allocate {_figure(size)}. Device {self.index} has a total capacity of "
                f"{_figure(limit)} of which {_figure(limit - self.allocated)} is free. "
                f"{_figure(self.allocated)} is allocated, {_figure(self.peak)} at its peak."
            )


def _figure(size: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} bytes"

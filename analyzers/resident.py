"""How much memory of the host a process holds."""

from __future__ import annotations

import os
import resource
from pathlib import Path

__all__ = ["peak_resident", "resident"]


def resident(pid: int) -> int:
    """Return the bytes that a process has in memory; 0 where the system does not say."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def peak_resident() -> int:
    """Return the most bytes that this process has had in memory.

    Not `ru_maxrss` where the system knows better: a process begins with that of the one that has started it.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

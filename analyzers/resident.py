"""How much memory of the host a process holds."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["resident"]


def resident(pid: int) -> int:
    """Return the bytes that a process has in memory; 0 where the system does not say."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")

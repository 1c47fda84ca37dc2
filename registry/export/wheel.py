"""Write the plugin as a wheel: pure Python, the same bytes for the same lock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from day0.registry.export.plan import ExportPlan

__all__ = ["Wheel", "write_wheel"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """What was written."""

    path: Path
    distribution: str
    version: str
    package: str
    sha256: str


def write_wheel(plan: ExportPlan, *, lock_text: str, files: tuple[Path, ...], receipts: str, folder: Path) -> Wheel:
    """Write `distribution-version-py3-none-any.whl` into a folder and return what it is.

    `lock_text` is the record as it stands on disk; `files` are the user's implementation files, of which those that
    the lock uses are carried; `receipts` is where the plugin's processes will write. In the wheel's package stand
    the lock (`ops.lock`), `MANIFEST.json` with the hash of every other file, the run-time files and `engine.py`, the
    adapter. It requires this version of day0, and the distributions that entries of the lock came from.
    """
    raise NotImplementedError

"""How long each stage took when its record was made: `timing.json` in the run folder. No verdict depends on it."""

from __future__ import annotations

import json
import math

from day0.cli.rundir import RunFolder, write_atomically
from day0.errors import Day0Error

__all__ = ["FILE", "note_seconds", "read_seconds"]

FILE = "timing.json"
SCHEMA = "day0.timing/1"


def read_seconds(folder: RunFolder) -> dict[str, float]:
    """Return seconds by stage; of a file that is damaged or of another day0 nothing, since it only informs."""
    try:
        found = json.loads(folder.read_text(FILE) or "{}")
    except (Day0Error, ValueError, RecursionError):
        return {}
    stages = found.get("stages") if isinstance(found, dict) and found.get("schema") == SCHEMA else None
    return {str(name): float(one) for name, one in stages.items() if _seconds(one)} if isinstance(stages, dict) else {}


def note_seconds(folder: RunFolder, stage: str, seconds: float) -> None:
    """Keep how long a stage took; that of other stages stays."""
    stages = {**read_seconds(folder), stage: round(seconds, 3)}
    text = json.dumps({"schema": SCHEMA, "stages": stages, "seconds": round(sum(stages.values()), 3)}, indent=1)
    write_atomically(folder.file(FILE), text + "\n")


def _seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0

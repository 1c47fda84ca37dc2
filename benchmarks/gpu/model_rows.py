"""What the parts of `model.py` write down, step by step, so that a time limit keeps the earlier steps."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from timing import Action, captured, timed, timed_runs

__all__ = ["Rows", "differ", "free"]


class Rows:
    """Times and figures of one part, in a file that is whole after each of them."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._end = path, time.monotonic() + seconds
        self.rows: list[dict[str, Any]] = []
        self.figures: dict[str, float] = {}

    def left(self) -> float:
        """Return how many seconds there are left."""
        return self._end - time.monotonic()

    def time(self, case: str, way: str, action: Action, device: str, **facts: Any) -> float:
        """Time an action as a graph where it can be captured, and write it down with how it ran."""
        if device == "cuda":
            run, how = captured(action)
            ms = timed_runs([run], 10)
        else:
            ms, how = timed([action], 2, device), "cpu"
        self.row(case, way, ms, how, **facts)
        return ms

    def row(self, case: str, way: str, ms: float, how: str, **facts: Any) -> None:
        """Write one time down."""
        self.rows.append({"case": case, "way": way, "ms": ms, "how": how, **facts})
        self._write()

    def figure(self, name: str, value: float) -> None:
        """Write one figure down."""
        self.figures[name] = round(value, 4)
        self._write()

    def _write(self) -> None:
        self._path.write_text(json.dumps({"rows": self.rows, "figures": self.figures}))


def differ(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the median over tokens of the relative error; of single tokens bfloat16 may choose another expert."""
    wide, other = one.double().flatten(0, -2), other.double().flatten(0, -2)
    error = (wide - other).norm(dim=-1) / other.norm(dim=-1)
    return float("inf") if bool(torch.isnan(error).any()) else float(error.median())


def free(device: str) -> None:
    """Give memory back that nobody holds."""
    if device == "cuda":
        torch.cuda.empty_cache()

"""What the parts of `model.py` write down, step by step, so that a time limit keeps the earlier steps."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from timing import Action, captured, timed, timed_runs

__all__ = ["Rows", "differ", "free", "refuse_difference"]

LIMIT = 5e-2
"""Of the tenth of the tokens that differ least: two orders of sums in bfloat16, over a few layers."""
FAR = 0.5
"""Of the median token. One other expert, chosen by a nearly equal score, changes a token by a third; something else
altogether by more than 1."""


class Rows:
    """Times and figures of one part, in a file that is whole after each of them."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._end = path, time.monotonic() + seconds
        self.rows: list[dict[str, Any]] = []
        self.figures: dict[str, float] = {}

    def left(self) -> float:
        """Return how many seconds there are left."""
        return self._end - time.monotonic()

    def time(self, case: str, way: str, action: Action, device: str, *, graph: bool = True, **facts: Any) -> float:
        """Time an action as a graph where it can be captured, and write it down with how it ran."""
        if device == "cuda":
            if not graph:
                action()
            run, how = captured(action) if graph else (action, "eager")
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


def differ(one: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """Return the relative errors of tokens: of the tenth that differ least, and the median; infinite for a NaN."""
    wide, other = one.double().flatten(0, -2), other.double().flatten(0, -2)
    error = (wide - other).norm(dim=-1) / other.norm(dim=-1)
    if bool(torch.isnan(error).any()):
        return float("inf"), float("inf")
    return float(error.quantile(0.1, interpolation="higher")), float(error.median())


def refuse_difference(what: str, one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the median error of a token. Raises SystemExit where the two are not the same computation."""
    least, median = differ(one, other)
    if not (least <= LIMIT and median <= FAR):
        raise SystemExit(f"error: {what}: a token differs by {median:.3g}, the nearest tenth by {least:.3g}")
    return median


def free(device: str) -> None:
    """Give memory back that nobody holds."""
    if device == "cuda":
        torch.cuda.empty_cache()

"""One call on the second device of the machine."""

from __future__ import annotations

from day0.analyzers.cases.kinds import says_values
from day0.analyzers.cases.ways._way import Way

__all__ = ["WAY"]

WAY = Way(
    name="second_device",
    why="kernels that run, or keep their buffers, on the first device whatever they are given",
    applies=lambda signature, contract: says_values(signature),
    device_index=1,
)

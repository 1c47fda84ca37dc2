"""Faults of a soak, planted between it and its engine: leaks, drift, pages that are not one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from day0.analyzers.soak.engine import Engine
from day0.analyzers.soak.plan import SOAK_FAULTS
from day0.analyzers.soak.pool import PoolEngine
from day0.errors import Day0Error, near_names

__all__ = ["Planted"]

HOST_BYTES, DEVICE_BYTES = 4 << 20, 256 << 10
EVERY = 3


class Planted:
    """Stands between a soak and its engine; without faults it hands everything on."""

    def __init__(self, names: tuple[str, ...], engine: Engine, device: torch.device) -> None:
        for name in names:
            if name not in SOAK_FAULTS:
                hint = near_names(name, tuple(SOAK_FAULTS)) or f"faults of a soak: {', '.join(SOAK_FAULTS)}"
                raise Day0Error(name, "there is no such fault of a soak", hint=hint)
        self.names, self.engine, self.device = names, engine, device
        self.kept: list[Any] = []
        self._endings = 0

    def free(self, batch: Any, *, failed: bool = False) -> None:
        """Let a batch go."""
        self._endings += 1
        fault = "soak_failed_kept" if failed else "soak_blocks_kept" if self._endings % EVERY == 0 else ""
        if fault in self.names:
            self.kept.append(batch)
        else:
            self.engine.free(batch)

    def keep(self, batch: Any, rows: list[int]) -> Any:
        """Let some rows of a batch go."""
        return self.engine.keep(batch, rows)

    def ended(self) -> None:
        """A sequence has ended."""
        if "soak_host_grows" in self.names:
            self.kept.append(bytearray(b"\1") * HOST_BYTES)
        if "soak_device_grows" in self.names:
            self.kept.append(torch.zeros(DEVICE_BYTES // 4).to(self.device))

    def step(self, number: int) -> None:
        """Before the decodes of a step: pages of two sequences change places."""
        if "soak_wrong_page" not in self.names or not isinstance(self.engine, PoolEngine) or number % EVERY:
            return
        pages = self.engine.pages
        if len(pages.sequences) < 2:
            return
        one, other = pages.sequences[:2]
        swapped = (
            replace(one, blocks=(*one.blocks[:-1], other.blocks[-1])),
            replace(other, blocks=(*other.blocks[:-1], one.blocks[-1])),
        )
        self.engine.pages = replace(pages, sequences=(*swapped, *pages.sequences[2:]))

    def work(self, number: int) -> None:
        """Within the time of a call: more of it with every step."""
        if "soak_slows" in self.names:
            some = torch.zeros(64).to(self.device)
            for _ in range(number):
                some = some + 1.0

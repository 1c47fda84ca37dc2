"""Whether a device is quiet enough to time tokens on: equal work is timed beside them, and what others do shows in it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from day0.analyzers.canary.gates import Figure
from day0.analyzers.canary.operators import seconds_of
from day0.analyzers.canary.spread import variation

__all__ = ["Control", "token_variation"]

QUIET = 0.025
"""How much equal work may vary: half of what tokens may."""
TRIED = 32
"""Kernels from whose time it follows how many are as long as a token."""
MOST = 1 << 14


@dataclass(kw_only=True)
class Control:
    """Equal small kernels, about as long together as one token, made again after each."""

    device: torch.device
    kernels: int = 0
    """As many each time; 0 until the first token says how long it takes."""
    seconds: list[float] = field(default_factory=list)
    """Empty on the CPU, whose tokens are not timed, and on the simulated device, which nobody else is on."""

    def repeat(self, token_s: float) -> None:
        """Do the work once more. The first time `token_s`, the seconds of a token, decides how much it is."""
        if self.device.type in ("cpu", "sim"):
            return
        if not self.kernels:
            self._launch(TRIED)
            self.kernels = int(min(MOST, max(TRIED, token_s * TRIED / max(self._launch(TRIED), 1e-9))))
        self.seconds.append(self._launch(self.kernels))

    def _launch(self, kernels: int) -> float:
        x = torch.ones(64, device=self.device)

        def work() -> None:
            for _ in range(kernels):
                x.add_(0.0)

        return seconds_of(self.device, work)[1]


def token_variation(tokens_s: list[float], control_s: list[float]) -> Figure:
    """Return how much the time of a token varies; no figure where equal work beside them varies too."""
    beside = variation(control_s) if control_s else None
    if beside is not None and beside.value is not None and beside.value > QUIET:
        why = f"the device or the host is not quiet: the time of equal work varies by {beside.value:.2g}"
        return Figure(None, why=why)
    return variation(tokens_s)

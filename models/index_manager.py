"""Index tables of sparse attention: made beside the main path, and what they make a query read is recorded.

Shape suffixes: B batch, S queries, K chosen tokens, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

__all__ = ["IndexManager"]


@dataclass(kw_only=True)
class IndexManager:
    """Runs the selection of each layer, on a stream of its own where the device has streams.

    `start` before the projections of the main path, `table` where attention needs the indices. With `record` the
    number of reads of each token is kept by layer.
    """

    record: bool = False
    reads: dict[str, torch.Tensor] = field(default_factory=dict)
    """How often each token was chosen, by layer: [B, T] int64, on the device."""
    _pending: dict[str, tuple[torch.Tensor, torch.Stream | None]] = field(default_factory=dict)
    _streams: dict[torch.device, torch.Stream] = field(default_factory=dict)

    def start(self, layer: str, select: Callable[[], torch.Tensor], device: torch.device) -> None:
        """Begin a selection; the caller goes on while the device works on it."""
        stream = self._stream(device)
        if stream is None:
            self._pending[layer] = (select(), None)
            return
        stream.wait_stream(torch.accelerator.current_stream(device))
        with stream:
            self._pending[layer] = (select(), stream)

    def forget(self) -> None:
        """Begin a new count: what was recorded belongs to a conversation that is over."""
        self.reads.clear()

    def table(self, layer: str, tokens: int) -> torch.Tensor:
        """Return the indices [B, S, K] of a started selection, in order after it on the caller's stream."""
        chosen_BSK, stream = self._pending.pop(layer)
        if stream is not None:
            current = torch.accelerator.current_stream(chosen_BSK.device)
            current.wait_stream(stream)
            # The memory was allocated on the other stream and must not be reused before this one is done.
            chosen_BSK.record_stream(current)
        if self.record:
            self._count(layer, chosen_BSK, tokens)
        return chosen_BSK

    def _count(self, layer: str, chosen_BSK: torch.Tensor, tokens: int) -> None:
        flat_BN = chosen_BSK.flatten(1).to(torch.int64)
        # One more column takes what is no token.
        target_BN = torch.where(flat_BN >= 0, flat_BN, tokens)
        counts_BT = torch.zeros(flat_BN.shape[0], tokens + 1, dtype=torch.int64, device=flat_BN.device)
        counts_BT = counts_BT.scatter_add(1, target_BN, torch.ones_like(target_BN))[:, :tokens]
        before_BT = self.reads.get(layer)
        # A shorter context is another conversation, and so is another batch.
        same = before_BT is not None and before_BT.shape[0] == counts_BT.shape[0]
        if before_BT is not None and same and before_BT.shape[1] <= tokens:
            counts_BT[:, : before_BT.shape[1]] += before_BT
        self.reads[layer] = counts_BT

    def _stream(self, device: torch.device) -> torch.Stream | None:
        if device.type not in ("cuda", "xpu"):
            return None
        if device not in self._streams:
            self._streams[device] = torch.Stream(device)
        return self._streams[device]

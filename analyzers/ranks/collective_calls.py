"""The calls that talk to other ranks, as torch's dispatcher sees them: what they are, and how long they take."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from day0.analyzers.ranks.board import RankBoard
from day0.analyzers.recording.costs import collective, is_collective
from day0.devices.open import synchronize

__all__ = ["CollectiveWatch", "kind_of", "sharded_class", "wait_for"]

_NAMES = {
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
}


def kind_of(op: str) -> str:
    """Return which collective an overload is, such as `all_reduce`; empty for what is none."""
    if not is_collective(op):
        return ""
    return _NAMES.get(op.partition("::")[2].partition(".")[0], "")


def sharded_class() -> type:
    """Return the class of sharded tensors: their calls are turned into those of this rank, which modes see again."""
    from torch.distributed.tensor import DTensor

    return DTensor


def wait_for(result: Any) -> None:
    """Wait until a collective is done; waiting for one that was waited for does nothing."""
    works = result if isinstance(result, tuple) else (result,)
    for one in works:
        if isinstance(one, torch.ScriptObject):
            work = _work_of(one)
            if work is not None:
                work.wait()
        elif isinstance(one, torch.Tensor):
            torch.ops._c10d_functional.wait_tensor(one)


def _work_of(boxed: torch.ScriptObject) -> torch.distributed.Work | None:
    """Return the work to wait for; None over NCCL, where a call that blocks runs on the caller's stream."""
    return torch._C._distributed_c10d.Work.unbox(boxed)


class CollectiveWatch(TorchDispatchMode):
    """Counts and times collectives, and tells the board before each one.

    Each one is waited for where it is called, so that its time is its own and not that of what comes after.
    """

    def __init__(self, board: RankBoard, device: torch.device, *, collective_s: float, step_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.board, self.device = board, device
        self.collective_s, self.step_s = collective_s, step_s
        self.seconds = 0.0
        self.calls = 0
        self.bytes = 0
        """What this rank sends, as a ring would."""
        self._sharded = sharded_class()

    def reset(self) -> None:
        """Begin to count anew."""
        self.seconds, self.calls, self.bytes = 0.0, 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator."""
        kwargs = kwargs or {}
        if self._sharded in types:
            return NotImplemented
        kind = kind_of(func.name())
        if not kind:
            return func(*args, **kwargs)
        sent = collective(func, args, kwargs)
        self.calls += 1
        self.bytes += sent.wire_bytes if sent is not None else 0
        synchronize(self.device)
        began = time.perf_counter()
        self.board.enter(kind, self.collective_s)
        result = func(*args, **kwargs)
        self.board.wait()
        wait_for(result)
        synchronize(self.device)
        self.board.leave(self.step_s)
        self.seconds += time.perf_counter() - began
        return result

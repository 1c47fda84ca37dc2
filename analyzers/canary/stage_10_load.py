"""The weights arrive on the device unchanged."""

from __future__ import annotations

import torch

from day0.analyzers.canary.context import CanaryContext, Measured
from day0.playbook import Gate

TITLE = "load"
CALLS = "any"
GATES = (Gate(metric="changed_tensors", rule="==", limit=0, inconclusive="fail"),)
METRICS = {
    "tensors": "parameters and buffers",
    "bytes": "their bytes",
    "changed_tensors": "read back with other bits",
}


def run(context: CanaryContext) -> Measured:
    """Move the model to the device and read every parameter and buffer back.

    Metrics: tensors, bytes, changed_tensors (read back with other bits).
    """
    state, expected = context.on_device().state_dict(), context.expected()
    changed: list[str] = []
    size = 0
    for name, value in state.items():
        back = value.detach().cpu()
        size += back.numel() * back.element_size()
        if not _same_bits(back, expected(name).detach()):
            changed.append(name)
    return Measured(
        metrics={"tensors": float(len(state)), "bytes": float(size), "changed_tensors": float(len(changed))},
        evidence=changed[0] if changed else "",
        diverged=changed[0] if changed else "",
    )


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return bool(torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8)))

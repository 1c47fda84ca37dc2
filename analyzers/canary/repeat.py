"""Which operator is the first to give other bits when the same pass is run again."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from day0.analyzers.canary.kept import hash_of_tensors
from day0.analyzers.modules.passes import Pass, walk
from day0.reference_ops.signatures import tensors_in

__all__ = ["first_unlike"]


def first_unlike(calls: Pass, model: torch.nn.Module, device: torch.device) -> str:
    """Run a pass twice and name the first operator with another result, and which of its calls it was.

    Everything before it was equal, so its arguments were too. Empty where all results are equal this time.
    """
    first, second = _results(calls, model, device), _results(calls, model, device)
    counts: dict[str, int] = {}
    for one, other in zip(first, second, strict=False):
        counts[one[0]] = counts.get(one[0], 0) + 1
        if one != other:
            return f"{one[0]}, call {counts[one[0]]} of the pass"
    return ""


def _results(calls: Pass, model: torch.nn.Module, device: torch.device) -> list[tuple[str, str]]:
    heard = _Results(device)
    with heard:
        for _ in walk(calls, model, device):
            continue
    return heard.found


class _Results(TorchDispatchMode):
    """While active, keeps the name of every operator on a device with a hash of what it gave."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.found: list[tuple[str, str]] = []
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator and keep its hash. Memory that nobody has written yet is left out."""
        result = func(*args, **(kwargs or {}))
        made = [one for one in tensors_in(result) if one.device.type == self._device.type]
        if made and not func.name().startswith("aten::empty"):
            self.found.append((func.name(), hash_of_tensors({str(number): one for number, one in enumerate(made)})))
        return result

"""Whether a reference that was given float64 computes in it throughout."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from day0.reference_ops.signatures import tensors_in

__all__ = ["NarrowingWatch"]


class NarrowingWatch(TorchDispatchMode):
    """While active, notes operators that get float64 and give a narrower floating dtype."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.narrowest: torch.dtype | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator and look at what came out."""
        out = func(*args, **(kwargs or {}))
        for one in (out,) if isinstance(out, torch.Tensor) else tensors_in(out):
            narrower = one.dtype.is_floating_point and one.dtype.itemsize < (self.narrowest or torch.float64).itemsize
            if narrower and any(given.dtype == torch.float64 for given in tensors_in((args, kwargs))):
                self.narrowest = one.dtype
        return out

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
        if any(one.dtype == torch.float64 for one in tensors_in((args, kwargs))):
            for one in tensors_in(out):
                if one.dtype.is_floating_point and one.itemsize < (self.narrowest or torch.float64).itemsize:
                    self.narrowest = one.dtype
        return out

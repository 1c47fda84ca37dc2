"""Run a model in float64 throughout, also where its code asks for less or torch has no float64 kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from day0.reference_ops.load import contract_of
from day0.reference_ops.signatures import tensors_in

__all__ = ["Float64Mode"]

_NARROW = (torch.float32, torch.bfloat16, torch.float16)


class Float64Mode(TorchDispatchMode):
    """While active, a cast to a narrower floating dtype stays float64, and operators with a contract of ours run it.

    Models cast to float32 inside norms and rotary embeddings; left alone, that would make the golden no better than
    what it is meant to judge. Casts to other kinds (integers, bool) are untouched.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator in float64."""
        args, kwargs = tuple(_widen(value) for value in args), {key: _widen(v) for key, v in (kwargs or {}).items()}
        contract = contract_of(func.name())
        if contract is not None and any(one.dtype == torch.float64 for one in tensors_in((args, kwargs))):
            return contract.reference(*args, **kwargs)
        return func(*args, **kwargs)


def _widen(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value

"""Integers that float32, or float64, cannot tell apart."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.copies import storage_row
from day0.analyzers.cases.integers import is_arithmetic, rules_of
from day0.analyzers.cases.kinds import is_aten, says_values
from day0.analyzers.cases.regimes._regime import Regime
from day0.records import Signature
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import tensor_values, tensors_in

__all__ = ["REGIME"]

_WHOLE = ("int32", "int64")
_BITS = {torch.int32: (2**24, 2**30), torch.int64: (2**24, 2**31, 2**53)}


def _applies(signature: Signature, contract: Operator | None) -> bool:
    whole = any(value.dtype in _WHOLE for value in tensor_values(signature))
    return (
        whole and is_aten(signature) and says_values(signature) and is_arithmetic(signature) and not rules_of(signature)
    )


def _arrange(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> str:
    for tensor in tensors_in((args, kwargs)):
        if tensor.dtype in _BITS:
            base, limits = storage_row(tensor), torch.tensor(_BITS[tensor.dtype])
            near = limits[torch.randint(0, len(limits), base.shape, generator=generator)]
            base.copy_(near + torch.randint(0, 4, base.shape, generator=generator))
    return ""


REGIME = Regime(
    name="large_integers",
    why="whole numbers that travel as floats: neighbours above 2^24, or 2^53, become one",
    applies=_applies,
    arrange=_arrange,
    last=True,
)

"""Large float16 numbers that cancel: what is added up on the way leaves the dtype, and the sum does not."""

from __future__ import annotations

import math
from typing import Any

import torch

from day0.analyzers.cases.kinds import is_aten, mutated
from day0.analyzers.cases.regimes._regime import Regime
from day0.analyzers.judging.kinds import short_name
from day0.records import Signature
from day0.reference_ops._spec import Operator
from day0.reference_ops._write import write
from day0.reference_ops.signatures import tensor_values, tensors_in

__all__ = ["REGIME"]

TERM = 40000.0
"""Two of them are more than float16 holds, 65504."""
_SUMS = frozenset({"sum", "mean"})
_PRODUCTS = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "mv": (0, 1),
    "dot": (0, 1),
    "linear": (0, 1),
    "matmul": (0, 1),
    "_grouped_mm": (0, 1),
    "addmm": (1, 2),
    "addmv": (1, 2),
    "baddbmm": (1, 2),
}
"""Places of the two factors, whose products are added up, among the tensors of the call."""


def _applies(signature: Signature, contract: Operator | None) -> bool:
    """To sums of float16 alone: what bfloat16 and float32 hold has room for every sum on the way."""
    name = short_name(signature.op)
    wide = [one for one in tensor_values(signature) if one.dtype != "float16" and "float" in one.dtype]
    half = any(one.dtype == "float16" and one.shape for one in tensor_values(signature))
    known = name in _SUMS or name in _PRODUCTS
    return is_aten(signature) and known and half and not wide and not mutated(signature)


def _arrange(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> str:
    tensors, name = list(tensors_in((args, kwargs))), short_name(signature.op)
    if name in _SUMS:
        write(tensors[0], TERM * _cancelling(tensors[0].shape))
        return ""
    one, other = (tensors[place] for place in _PRODUCTS[name])
    # Along the last dimension, which the products are added up along; the other factor is the same number throughout.
    signs_K = _cancelling(one.shape[-1:])
    write(one, math.sqrt(TERM) * signs_K.expand(one.shape))
    write(other, torch.full(other.shape, math.sqrt(TERM)))
    return ""


def _cancelling(shape: torch.Size) -> torch.Tensor:
    """Return 1 and -1 of a shape, whose sum along every dimension is 0: 1 in the first half of a row, -1 in the second.

    An odd row has 0 in its middle, and a dimension of one element is left as it is.
    """
    signs = torch.ones(())
    for size in shape:
        half = torch.ones(size // 2)
        signs = signs[..., None] * (torch.cat((half, torch.zeros(size % 2), -half)) if size != 1 else torch.ones(1))
    return signs


REGIME = Regime(
    name="partial_overflow",
    why="sums that are kept in float16 and overflow on the way to a result that it holds",
    applies=_applies,
    arrange=_arrange,
)

"""How large the numbers are among which one element of a result came about: what its error is relative to.

The error of a sum is relative to its partial sums, not to the sum, which may have cancelled to nothing. For a sum in any
order the partial sums are about the root of the sum of squares of the terms, beside the sum itself; the operator says
what that is when it is run on the squares of its inputs (Higham, Accuracy and Stability of Numerical Algorithms, 4.2,
with random signs of the rounding errors).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.judging.kinds import short_name
from day0.reference_ops.signatures import resolve

__all__ = ["EPS_FLOAT32", "largest_so_far", "most_additions", "moved_inputs", "partial_sums", "row_scale", "squared"]

EPS_FLOAT32 = float(torch.finfo(torch.float32).eps)


def squared(inputs: CaseInputs) -> CaseInputs:
    """Return the arguments with the square of every floating value, tensors and factors such as `alpha`."""

    def change(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.square() if value.is_floating_point() else value
        return value * value if isinstance(value, float) else value

    return CaseInputs(args=_map(inputs.args, change), kwargs=_map(inputs.kwargs, change))


def partial_sums(op: str, golden: torch.Tensor, squares: torch.Tensor | None, terms: int) -> torch.Tensor | None:
    """Return how large the partial sums behind each element are, in float64; None where the squares say nothing.

    `squares` is the operator's result for squared inputs.
    """
    if squares is None or squares.shape != golden.shape or not golden.is_floating_point():
        return None
    if short_name(op) == "mean":
        squares = squares / max(1, terms)
    scale = (golden.to(torch.float64).square() + squares.to(torch.float64)).sqrt()
    return scale.nan_to_num(nan=0.0, posinf=0.0)


def most_additions(op: str, inputs: CaseInputs) -> int:
    """Return how many values at most are added to one place by an operator that adds into memory."""
    seen: list[torch.Tensor] = []

    def change(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype in (torch.int64, torch.int32, torch.bool, torch.uint8):
            return value.clone() if isinstance(value, torch.Tensor) else value
        seen.append(value)
        fresh = torch.zeros if len(seen) == 1 else torch.ones
        return fresh(value.shape, dtype=torch.float64)

    args, kwargs = _map(inputs.args, change), _map(inputs.kwargs, change)
    counts = resolve(op)(*args, **kwargs)
    return int(counts.max()) + 1 if counts.numel() else 1


def largest_so_far(golden: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the largest magnitude up to each place along a dimension: what a running sum has gone through."""
    return golden.abs().cummax(dim).values if golden.dim() and golden.numel() else golden.abs()


def row_scale(golden: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude of each row of the last dimension, for every element of it."""
    if not golden.dim() or not golden.numel():
        return golden.abs()
    return golden.abs().amax(-1, keepdim=True).expand_as(golden)


def moved_inputs(inputs: CaseInputs, generator: torch.Generator, eps: float) -> CaseInputs:
    """Return the arguments with every floating value moved by up to `eps`, relative to itself."""

    def change(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.element_size() == 8:
            noise = torch.rand(value.shape, generator=generator, dtype=value.dtype) * 2.0 - 1.0
            return value * (1.0 + eps * noise)
        return value

    return CaseInputs(args=_map(inputs.args, change), kwargs=_map(inputs.kwargs, change))


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_map(item, change) for item in value)
    if isinstance(value, dict):
        return {name: _map(item, change) for name, item in value.items()}
    return change(value)

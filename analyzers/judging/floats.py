"""The error of a float result against a golden in higher precision, beside the error that the dtype itself causes.

The second is the yardstick: the same operator, same dtype, same inputs, on the CPU.
"""

from __future__ import annotations

import math

import torch

from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.words import index_of, readable, text_at
from day0.reference_ops._spec import Tolerance

__all__ = ["floats", "relative_l2"]

ELEMENT_RATIO = 5.0
"""Largest error of one element over the largest error of the yardstick; 5 is where Neuron's L-infinity guard stands."""


def floats(
    got: torch.Tensor,
    golden: torch.Tensor,
    reference: torch.Tensor | None,
    tolerance: Tolerance,
    *,
    terms: int = 1,
    condition: float = 1.0,
) -> Judgement:
    """Error against the golden, relative to the yardstick, then element by element.

    `golden` is float64; `reference` is the same-dtype result on the CPU, or None where there is no such kernel.
    `terms` is how many products or values one element sums up, `condition` how much larger their magnitudes add up to.
    Only finite places are compared: `non_finite` has judged the others.
    """
    if got.is_complex():
        golden, got = torch.view_as_real(golden.to(torch.complex128)), torch.view_as_real(got)
        reference = torch.view_as_real(reference) if reference is not None else None
    dtype, got, golden = got.dtype, readable(got), golden.to(torch.float64)
    summing = condition * _summing(dtype, terms)
    finite = torch.isfinite(golden) & torch.isfinite(got)
    wide = torch.where(finite, got.to(torch.float64), 0.0)
    gold = torch.where(finite, golden, 0.0)
    base = torch.where(finite, reference.to(torch.float64), 0.0) if reference is not None else gold
    base = torch.where(torch.isfinite(base), base, gold)
    error, yardstick = relative_l2(wide, gold), relative_l2(base, gold)
    limit = _limit(dtype, yardstick if reference is not None else None, tolerance, summing)
    excess = (wide - gold).abs() - _allowed(gold, base, dtype, tolerance, summing, limit, reference is not None)
    index = index_of(int(excess.argmax()), got.shape) if got.numel() else None
    passed_l2, passed_elements = error <= limit, bool((excess <= 0).all())
    passed = passed_l2 and passed_elements
    rule = "relative_l2" if not passed_l2 else "elements"
    return Judgement(
        passed=passed,
        rule=rule,
        reason="" if passed else _float_reason(rule, error, limit, yardstick, excess),
        error=error,
        yardstick=yardstick,
        limit=limit,
        worst_index=index,
        worst_got=text_at(got, index) if index is not None else "",
        worst_expected=text_at(golden, index) if index is not None else "",
    )


def _limit(dtype: torch.dtype, yardstick: float | None, tolerance: Tolerance, summing: float) -> float:
    """Return the largest relative L2 error that passes: see docs/decisions/0001-how-a-float-is-judged.md."""
    floor = min(_rounding(dtype) + tolerance.ulps * _eps(_computing(dtype)), _ceiling(dtype, tolerance)) + summing
    if yardstick is None:
        return max(floor, tolerance.ceiling)
    return max(yardstick, floor, min(tolerance.ratio * yardstick, tolerance.ceiling))


def _allowed(
    gold: torch.Tensor,
    base: torch.Tensor,
    dtype: torch.dtype,
    tolerance: Tolerance,
    summing: float,
    limit: float,
    has_reference: bool,
) -> torch.Tensor:
    """Return how far each element may be off."""
    if not gold.numel():
        return gold
    own = ELEMENT_RATIO * (base - gold).abs().max() if has_reference else limit * gold.abs().max()
    units = _rounding(dtype) + tolerance.ulps * _eps(_computing(dtype))
    return own + summing * gold.abs().max() + _spacing(gold, dtype, units)


def _eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)


def _computing(dtype: torch.dtype) -> torch.dtype:
    """Half types and smaller are computed in float32, as every device worth the name does."""
    return torch.float32 if torch.finfo(dtype).bits < 32 else dtype


def _rounding(dtype: torch.dtype) -> float:
    """Return one unit of a dtype that is narrower than the one it was computed in: results are stored rounded."""
    return _eps(dtype) if torch.finfo(dtype).bits < 32 else 0.0


def _ceiling(dtype: torch.dtype, tolerance: Tolerance) -> float:
    # Eight bits cannot hold the ceiling: there the rounding alone costs more.
    return max(tolerance.ceiling, _rounding(dtype)) or float("inf")


def _summing(dtype: torch.dtype, terms: int) -> float:
    """Return the error that another order of a sum makes: roundings add up like a random walk."""
    return math.sqrt(terms - 1) * _eps(_computing(dtype))


def _float_reason(rule: str, error: float, limit: float, yardstick: float, excess: torch.Tensor) -> str:
    if rule == "relative_l2":
        return f"relative error {error:.3g} is above {limit:.3g}; the dtype itself costs {yardstick:.3g}"
    return (
        f"{int((excess > 0).sum())} elements are further off than {ELEMENT_RATIO:g} times the dtype's own worst error"
    )


def relative_l2(got: torch.Tensor, golden: torch.Tensor) -> float:
    """Return |got - golden| / |golden|; against an all-zero golden, 0 if equal and infinity if not."""
    distance = float(torch.linalg.vector_norm(got - golden))
    size = float(torch.linalg.vector_norm(golden))
    if size == 0.0:
        return 0.0 if distance == 0.0 else float("inf")
    return distance / size


def _spacing(golden: torch.Tensor, dtype: torch.dtype, units: float) -> torch.Tensor:
    """Return `units` (relative) at each value, and never less than the smallest number of the dtype."""
    smallest = float(torch.finfo(dtype).smallest_normal) * _eps(dtype)
    return torch.clamp(golden.abs() * units, min=smallest)

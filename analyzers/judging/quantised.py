"""Codes and scales, judged together: what they stand for, by the spacing of the format.

Shape suffixes: codes as the operator returns them, [N, D] say, scales as they are spread over them.
"""

from __future__ import annotations

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.judging.exact import exact
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.scales import EPS_FLOAT32
from day0.analyzers.judging.words import index_of, readable, text_at
from day0.reference_ops._spec import Operator, Quantisation

__all__ = ["quantised", "spacing"]


def quantised(
    got: tuple[torch.Tensor, ...],
    same: tuple[torch.Tensor, ...],
    inputs: CaseInputs,
    contract: Operator,
    quantisation: Quantisation,
    number: int,
) -> Judgement:
    """Judge codes (result 0) by what they stand for with their scales (result 1), and scales by the contract's rule.

    A scale that is no power of two may be off by what the dtype of the inputs rounds its largest value by; a power of two
    may be the neighbouring one where that decides it. A code is one of the two that lie around the value, and the nearer
    one unless the value is as near to the middle as that rounding: so never more than one code off.
    """
    codes, scales = got[0], got[1].to(torch.float64)
    right = same[1].to(torch.float64)
    source = next(one for one in inputs.args if isinstance(one, torch.Tensor))
    slack = _slack(source.dtype, contract.tolerance.ulps)
    two = quantisation.power_of_two(*inputs.args, **inputs.kwargs)
    values = quantisation.values(*inputs.args, **inputs.kwargs)
    if number == 1 and not two:
        return _scales(scales, right, slack)
    if number == 1:
        names = torch.arange(scales.numel(), dtype=torch.float64).reshape(scales.shape)
        owner = quantisation.spread(names, *inputs.args, **inputs.kwargs)
        return _powers(scales, right, _largest(values, owner, scales), codes.dtype, slack)
    spread = quantisation.spread(scales, *inputs.args, **inputs.kwargs)
    return _codes(codes, values, spread, same[0], slack)


def spacing(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the distance between neighbouring numbers of a dtype at each value."""
    limits = torch.finfo(dtype)
    exponent = torch.frexp(values.abs().clamp(min=float(limits.smallest_normal), max=float(limits.max)))[1]
    return torch.ldexp(torch.full_like(values, float(limits.eps)), exponent - 1)


def _slack(dtype: torch.dtype, ulps: float) -> float:
    """Return how far rounding may have moved a value before it was quantised, relative to it."""
    narrow = torch.finfo(dtype).bits < 32
    # Rounded twice where a norm rounds before its weight multiplies, once by a kernel that keeps float32.
    return (2.0 * float(torch.finfo(dtype).eps) if narrow else 0.0) + (ulps + 2.0) * EPS_FLOAT32


def _scales(scales: torch.Tensor, right: torch.Tensor, slack: float) -> Judgement:
    error = ((scales - right).abs() / right.abs().clamp(min=1e-300)).nan_to_num(nan=0.0)
    wrong = (torch.isfinite(scales) != torch.isfinite(right)) | (error > slack)
    return _scales_judged(scales, right, error, wrong, slack, f"right within {slack:.3g}")


def _powers(
    scales: torch.Tensor, right: torch.Tensor, largest: torch.Tensor, dtype: torch.dtype, slack: float
) -> Judgement:
    """A power of two, and the least that suffices, unless the largest value is as near to the edge as rounding."""
    error = ((scales - right).abs() / right.abs().clamp(min=1e-300)).nan_to_num(nan=0.0)
    smaller = torch.minimum(scales, right) * float(torch.finfo(dtype).max)
    at_edge = ((largest - smaller).abs() <= slack * smaller) & ((error == 1.0) | (error == 0.5))
    finite = torch.isfinite(scales)
    wrong = (finite != torch.isfinite(right)) | (finite & (torch.frexp(scales)[0] != 0.5))
    return _scales_judged(scales, right, error, wrong | ((error != 0.0) & ~at_edge), 0.0, "the least power of two")


def _largest(values: torch.Tensor, owner: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude of the values that each scale belongs to."""
    empty = torch.zeros(scales.numel(), dtype=torch.float64)
    sizes = values.abs().nan_to_num(nan=0.0).reshape(-1)
    return empty.scatter_reduce(0, owner.to(torch.int64).reshape(-1), sizes, "amax").reshape(scales.shape)


def _scales_judged(
    scales: torch.Tensor, right: torch.Tensor, error: torch.Tensor, wrong: torch.Tensor, limit: float, rule: str
) -> Judgement:
    worst = float(error.max()) if error.numel() else 0.0
    if not bool(wrong.any()):
        return Judgement(passed=True, rule="scales", error=min(worst, limit), limit=limit)
    index = index_of(int(wrong.reshape(-1).to(torch.uint8).argmax()), wrong.shape)
    return Judgement(
        passed=False,
        rule="scales",
        reason=f"{int(wrong.sum())} scales are not {rule}",
        error=float(error[index]),
        limit=limit,
        needed=float(error[index]),
        worst_index=index,
        worst_got=text_at(scales, index),
        worst_expected=text_at(right, index),
    )


def _codes(
    codes: torch.Tensor, values: torch.Tensor, spread: torch.Tensor, same: torch.Tensor, slack: float
) -> Judgement:
    broken = ~torch.isfinite(values) | ~torch.isfinite(spread) | (spread == 0)
    numbers, fallback = readable(codes).to(torch.float64), readable(same).to(torch.float64)
    undecided = exact(torch.where(broken, numbers, 0.0), torch.where(broken, fallback, 0.0))
    if not undecided.passed:
        return undecided
    scaled = torch.where(broken, 0.0, values / torch.where(broken, 1.0, spread))
    largest = float(torch.finfo(codes.dtype).max)
    error = torch.where(broken, 0.0, (numbers - scaled.clamp(-largest, largest)).abs())
    limit = 0.5 * spacing(scaled * (1.0 + slack), codes.dtype) + slack * scaled.abs()
    error = error.nan_to_num(nan=float("inf"))
    wrong = error > limit
    share = error / spacing(scaled, codes.dtype)
    worst = float(share.max()) if share.numel() else 0.0
    if not bool(wrong.any()):
        return Judgement(passed=True, rule="codes", error=worst, limit=max(worst, 0.5))
    index = index_of(int((error - limit).argmax()), error.shape)
    return Judgement(
        passed=False,
        rule="codes",
        reason=f"{int(wrong.sum())} codes are not the nearest to the value over its scale; the worst is "
        f"{float(share[index]):.3g} codes away",
        error=float(share[index]),
        limit=float((limit / spacing(scaled, codes.dtype))[index]),
        needed=float(share[index]),
        worst_index=index,
        worst_got=text_at(readable(codes), index),
        worst_expected=text_at(scaled, index),
    )

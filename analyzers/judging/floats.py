"""The error of a float result against a golden in higher precision, beside the error that the dtype itself causes.

The second is the yardstick: the same operator, same dtype, same inputs, on the CPU. Three measures must pass: the norm
of the whole, the norm of every line along every dimension (a wrong head among many drowns in the whole), every element.
Numbers and reasons: docs/decisions/0001 and 0011.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.scales import row_scale
from day0.analyzers.judging.words import all_finite, index_of, readable, text_at
from day0.reference_ops._spec import Tolerance

__all__ = ["floats", "relative_l2"]

ELEMENT_RATIO = 5.0
"""Largest error of one element over the yardstick's; 5 is where Neuron's L-infinity guard stands."""
LINE = 8
"""Lines shorter than this are judged by their elements alone: their norm is a matter of luck."""
QUANTILE = 0.95
"""Of the yardstick's errors: what is usual. The worst of them may come from one place that cancelled."""
DISPLACEMENT = 4.0
"""How many times what the golden moves by, root mean square, when the inputs are moved by one unit of the dtype."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measured:
    """All in float64 and of one shape; 0 where something is not finite."""

    gold: torch.Tensor
    error: torch.Tensor
    yard: torch.Tensor
    own: torch.Tensor
    """What every result may be off: rounding, documented units, another order of a sum."""
    floor: torch.Tensor
    """The same, with documented units of what the element came from."""
    loose: torch.Tensor | None
    """What running sums and bad condition allow besides, in norms up to the ceiling; None for nothing."""
    scale: torch.Tensor
    """What errors are relative to."""
    tolerance: Tolerance
    ceiling: float
    has_yard: bool


def floats(
    got: torch.Tensor,
    golden: torch.Tensor,
    reference: torch.Tensor | None,
    tolerance: Tolerance,
    *,
    terms: int = 1,
    condition: float = 1.0,
    rounded: torch.Tensor | None = None,
    partial: torch.Tensor | None = None,
    among: torch.Tensor | None = None,
    pointwise: bool = False,
    levels: int = 0,
    displaced: Callable[[], torch.Tensor | None] | None = None,
) -> Judgement:
    """Error against the golden, relative to the yardstick: as a whole, line by line, element by element.

    `golden` is float64; `reference` is the same-dtype result on the CPU, or None where there is no such kernel, and
    `rounded` the result of float32 rounded once: the better one is the yardstick. `terms` is how many products or values
    one element sums up, `partial` how large its partial sums are, or else `condition` how much larger than the result.
    A `pointwise` result has nothing to do with its neighbours; `among` is how large the numbers were that it came from,
    where that is more than itself. `levels` is how many results of the dtype itself are
    added up in a row on the way to one: for running sums. `displaced` says by how much the golden moves with its
    inputs; it is asked only if the result would fail without. Only finite places are compared: `non_finite` has judged
    the others.
    """
    got, golden = _plain(got), _plain(golden)
    reference, rounded = (None if one is None else _plain(one) for one in (reference, rounded))
    partial, among = (None if one is None or one.shape != golden.shape else one for one in (partial, among))
    finite = _finite(readable(got), golden)
    gold = _where(finite, golden.to(torch.float64))
    wide = _where(finite, readable(got).to(torch.float64, copy=True))
    size = gold.abs()
    own = _own(size, wide, got.dtype, tolerance)
    error = wide.sub_(gold).abs_()
    yard = _yardstick(gold, finite, reference, rounded)
    sums = _where(finite, partial) if partial is not None else None
    scale = _scale(size, sums if sums is not None else among, pointwise)
    order = math.sqrt(max(0, terms - 1)) * _eps(_computing(got.dtype))
    units = 0.0 if pointwise and among is None else tolerance.ulps * _eps(_computing(got.dtype))
    measured = _Measured(
        gold=gold,
        error=error,
        yard=yard,
        own=_added(own, order, sums if sums is not None else size, condition),
        floor=_floor(own, size, sums, scale, (order, condition, units), pointwise=pointwise),
        loose=math.sqrt(levels) * _eps(got.dtype) * scale if levels else None,
        scale=scale,
        tolerance=tolerance,
        ceiling=max(tolerance.ceiling, _rounding(got.dtype)) or float("inf"),
        has_yard=reference is not None or rounded is not None,
    )
    del size
    judged = _judge(measured, got, golden)
    if judged.passed or displaced is None:
        return judged
    distance = displaced()
    if distance is None or distance.shape != gold.shape:
        return judged
    return _judge_displaced(judged, measured, got, golden, _where(finite, distance))


def _judge_displaced(
    judged: Judgement, measured: _Measured, got: torch.Tensor, golden: torch.Tensor, distance: torch.Tensor
) -> Judgement:
    """Judge again with what the golden moves by when its inputs do; what fails nevertheless keeps its first reason."""
    distance = distance.nan_to_num(nan=0.0, posinf=0.0)
    loose = measured.loose if measured.loose is not None else _nothing(measured.gold)
    moved = _judge(replace(measured, loose=loose + DISPLACEMENT * distance), got, golden)
    note = "judged by how far the golden moves when its inputs are moved by one unit: it is badly conditioned here"
    return replace(moved, notes=(note,)) if moved.passed else judged


def _finite(got: torch.Tensor, golden: torch.Tensor) -> torch.Tensor | None:
    """Return a mask of the places at which both are finite; None where all are, as nearly always."""
    if got.shape == golden.shape and all_finite(got) and all_finite(golden):
        return None
    finite = torch.isfinite(got) & torch.isfinite(golden)
    return None if bool(finite.all()) else finite


def _where(finite: torch.Tensor | None, values: torch.Tensor) -> torch.Tensor:
    return values if finite is None else torch.where(finite, values, 0.0)


def _floor(
    own: torch.Tensor,
    size: torch.Tensor,
    sums: torch.Tensor | None,
    scale: torch.Tensor,
    factors: tuple[float, float, float],
    *,
    pointwise: bool,
) -> torch.Tensor:
    """Return what an element may be off with documented units of what it came from. What is 0 takes no memory."""
    order, condition, units = factors
    if sums is not None:
        floor = _added(own, order, sums, 1.0)
    else:
        floor = _added(own, order, size if pointwise else scale, condition)
    return floor + units * scale if units else floor


def _added(own: torch.Tensor, order: float, sums: torch.Tensor, condition: float) -> torch.Tensor:
    return own + order * (sums if condition == 1.0 else condition * sums) if order else own


def _nothing(like: torch.Tensor) -> torch.Tensor:
    return like.new_zeros(()).expand_as(like)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _yardstick(
    gold: torch.Tensor, finite: torch.Tensor | None, reference: torch.Tensor | None, rounded: torch.Tensor | None
) -> torch.Tensor:
    """Return the errors of the better of the two results in the dtype, none in the place of what is not finite."""
    best: torch.Tensor | None = None
    least = float("inf")
    for one in (reference, rounded):
        if one is None or one.shape != gold.shape:
            continue
        wide = readable(one).to(torch.float64)
        if finite is not None or not all_finite(wide):
            here = torch.isfinite(wide)
            wide = torch.where(here if finite is None else finite & here, wide, gold)
        error = wide - gold
        distance = _norm(error)
        if distance < least:
            best, least = error, distance
    return best.abs_() if best is not None else torch.zeros_like(gold)


def _scale(size: torch.Tensor, among: torch.Tensor | None, pointwise: bool) -> torch.Tensor:
    if among is not None:
        return torch.maximum(torch.where(torch.isfinite(among), among, 0.0), size)
    return size if pointwise else row_scale(size)


def _own(size: torch.Tensor, wide: torch.Tensor, dtype: torch.dtype, tolerance: Tolerance) -> torch.Tensor:
    """Return what an element may be off relative to itself."""
    smallest = float(torch.finfo(dtype).smallest_normal)
    units = _rounding(dtype) + tolerance.ulps * _eps(_computing(dtype))
    own = (size * units).clamp_(min=smallest * _eps(dtype))
    # Devices may take numbers below the smallest normal one for 0.
    if int(torch.count_nonzero(wide)) == wide.numel():
        return own
    flushed = (wide == 0.0) & (size < smallest)
    return torch.where(flushed, size, own) if bool(flushed.any()) else own


def _judge(m: _Measured, got: torch.Tensor, golden: torch.Tensor) -> Judgement:
    """Judge as a whole, line by line, element by element; the first that fails speaks."""
    norm = _norm(m.gold) or 1.0
    error, yardstick = _norm(m.error) / norm, _norm(m.yard) / norm
    limit = _limit(m, yardstick, norm)
    excess = m.error - _allowed(m, limit)
    index = index_of(int(excess.argmax()), got.shape) if got.numel() else None
    said = Judgement(
        passed=True,
        rule="relative_l2",
        error=error,
        yardstick=yardstick,
        limit=limit,
        worst_index=index,
        worst_got=text_at(readable(got), index) if index is not None else "",
        worst_expected=text_at(golden, index) if index is not None else "",
    )
    if not error <= limit:
        reason = f"relative error {error:.3g} is above {limit:.3g}; the dtype itself costs {yardstick:.3g}"
        return replace(said, passed=False, reason=reason, needed=error if error < float("inf") else None)
    if bool((m.error <= m.yard).all()):
        return said  # as good as the yardstick everywhere, so in every line too
    return _worst_line(m, said, limit) or _worst_element(m, excess, said) or said


def _worst_element(m: _Measured, excess: torch.Tensor, said: Judgement) -> Judgement | None:
    if said.worst_index is None or not bool((excess > 0).any()):
        return None
    error = float(m.error[said.worst_index])
    allowed = error - float(excess[said.worst_index])
    reason = (
        f"{int((excess > 0).sum())} elements are further off than {ELEMENT_RATIO:g} times what the dtype itself costs "
        f"there; the worst is off by {error:.3g}, {allowed:.3g} would pass"
    )
    yard = float(m.yard[said.worst_index])
    return replace(
        said, passed=False, rule="elements", reason=reason, error=error, yardstick=yard, limit=allowed, needed=error
    )


def _worst_line(m: _Measured, said: Judgement, whole: float) -> Judgement | None:
    """Judge the lines along every dimension by their norms; return the one that is furthest beyond its limit."""
    worst, furthest = None, 1.0
    for dim, size in enumerate(m.gold.shape):
        if size < LINE or m.gold.numel() == size:
            continue
        error, limit, gold = _lines(m, dim, whole)
        times = error / limit.clamp(min=1e-300)
        if bool((error > limit).any()) and float(times.max()) > furthest:
            furthest = float(times.max())
            place = index_of(int(times.argmax()), error.shape)
            worst = _line_failed(dim, place, float(error[place]), float(limit[place]), float(gold[place]), said)
    return worst


def _lines(m: _Measured, dim: int, whole: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the norms of the errors along one dimension, the largest that pass, and the norms of the golden."""
    extra = m.loose if m.loose is not None else _nothing(m.gold)
    error, yard, gold, scale, floor, loose = (
        torch.linalg.vector_norm(one, dim=dim, keepdim=True)
        for one in (m.error, m.yard, m.gold, m.scale, m.floor, extra)
    )
    ceiling = m.ceiling * torch.maximum(gold, scale)
    times = torch.minimum(m.tolerance.ratio * torch.maximum(yard, _usual(yard, scale) * scale), ceiling)
    units = floor + torch.minimum(loose, ceiling)
    if not m.has_yard:
        return error, units + whole * scale, gold
    return error, torch.maximum(torch.maximum(yard, units), times), gold


def _line_failed(
    dim: int, place: tuple[int, ...], error: float, limit: float, size: float, said: Judgement
) -> Judgement:
    unit = size or 1.0
    where = ", ".join(":" if axis == dim else str(at) for axis, at in enumerate(place))
    reason = f"line [{where}] has a relative error of {error / unit:.3g}, above {limit / unit:.3g}; the whole is within its limit"
    return replace(
        said, passed=False, rule="lines", reason=reason, error=error / unit, limit=limit / unit, needed=error / unit
    )


def _limit(m: _Measured, yardstick: float, norm: float) -> float:
    """Return the largest relative L2 error that passes; `norm` is what errors are relative to."""
    units = _norm(m.own) / norm + (min(_norm(m.loose) / norm, m.ceiling) if m.loose is not None else 0.0)
    if not m.has_yard:
        return max(units, m.tolerance.ceiling if bool(m.gold.any()) else 0.0)
    return max(yardstick, units, min(m.tolerance.ratio * yardstick, m.tolerance.ceiling))


def _allowed(m: _Measured, limit: float) -> torch.Tensor:
    """Return how far each element may be off."""
    floor = m.floor if m.loose is None else m.floor + m.loose
    if not m.has_yard:
        return floor + limit * m.scale
    return torch.maximum(m.yard, _usual(m.yard, m.scale) * m.scale).mul_(ELEMENT_RATIO).add_(floor)


def _usual(yard: torch.Tensor, scale: torch.Tensor) -> float:
    """Return the yardstick's usual error relative to the scale."""
    some = scale > 0
    share = (yard / scale).reshape(-1) if bool(some.all()) else (yard / scale)[some].reshape(-1)
    return float(share.kthvalue(max(1, math.ceil(QUANTILE * share.numel()))).values) if share.numel() else 0.0


def _eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)


def _computing(dtype: torch.dtype) -> torch.dtype:
    """Half types and smaller are computed in float32, as every device worth the name does."""
    return torch.float32 if torch.finfo(dtype).bits < 32 else dtype


def _rounding(dtype: torch.dtype) -> float:
    """Return one unit of a dtype that is narrower than the one it was computed in: results are stored rounded."""
    return _eps(dtype) if torch.finfo(dtype).bits < 32 else 0.0


def relative_l2(got: torch.Tensor, golden: torch.Tensor) -> float:
    """Return |got - golden| / |golden|; against an all-zero golden, 0 if equal and infinity if not."""
    distance = _share(got - golden, golden)
    return distance if bool(golden.any()) or distance == 0.0 else float("inf")


def _share(error: torch.Tensor, golden: torch.Tensor) -> float:
    """Return |error| / |golden|, and |error| itself where the golden is all zero."""
    return _norm(error) / (_norm(golden) or 1.0)


def _norm(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor))

"""Is a result right? Small pure rules, in the order in which they are asked. NaN never passes by accident.

The error of a float result is measured against a golden in higher precision and compared with the error that the
dtype itself causes: the same operator, same dtype, same inputs, on the CPU (the yardstick).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from day0.reference_ops._spec import Tolerance

__all__ = [
    "Judgement",
    "exact",
    "floats",
    "index_sets",
    "layout",
    "non_finite",
    "relative_l2",
]

ELEMENT_RATIO = 5.0
"""Largest error of one element over the largest error of the yardstick; 5 is where Neuron's L-infinity guard stands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What one rule says. `limit` is the largest error that would have passed."""

    passed: bool
    rule: str
    reason: str = ""
    error: float | None = None
    yardstick: float | None = None
    limit: float | None = None
    worst_index: tuple[int, ...] | None = None
    worst_got: str = ""
    worst_expected: str = ""


def layout(
    got: torch.Tensor, expected: torch.Tensor, device_type: str, *, free_dtype: bool = False, strides: bool = True
) -> Judgement:
    """Shape, dtype unless it is free, device and, for dimensions that have more than one element, strides."""
    facts = (
        ("shape", tuple(got.shape), tuple(expected.shape)),
        ("dtype", got.dtype, got.dtype if free_dtype else expected.dtype),
        ("device", got.device.type, device_type),
        ("strides", _strides(got), _strides(expected) if strides else _strides(got)),
    )
    for name, have, want in facts:
        if have != want:
            return Judgement(passed=False, rule="layout", reason=f"{name} is {have}, expected {want}")
    return Judgement(passed=True, rule="layout")


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    if tensor.numel() == 0:
        return ()
    return tuple(step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def non_finite(got: torch.Tensor, expected: torch.Tensor) -> Judgement:
    """NaN, +infinity and -infinity stand at the same places."""
    got, expected = _readable(got), _readable(expected)
    for name, test in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        wrong = test(got) != test(expected)
        if bool(wrong.any()):
            index = _first_true(wrong)
            return Judgement(
                passed=False,
                rule="non_finite",
                reason=f"{int(wrong.sum())} elements differ in {name}",
                worst_index=index,
                worst_got=_text(got, index),
                worst_expected=_text(expected, index),
            )
    return Judgement(passed=True, rule="non_finite")


def exact(got: torch.Tensor, expected: torch.Tensor) -> Judgement:
    """Bit for bit, NaN equal to NaN: for integers, lookups and copies."""
    wrong = differs(got, expected)
    if not bool(wrong.any()):
        return Judgement(passed=True, rule="exact", error=0.0, limit=0.0)
    index = _first_true(wrong)
    return Judgement(
        passed=False,
        rule="exact",
        reason=f"{int(wrong.sum())} of {got.numel()} elements differ",
        limit=0.0,
        worst_index=index,
        worst_got=_text(got, index),
        worst_expected=_text(expected, index),
    )


def differs(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return a mask of the elements that differ; NaN equals NaN, and 0 equals -0."""
    got, expected = _readable(got), _readable(expected)
    same = got == expected
    if got.is_floating_point():
        same = same | (torch.isnan(got) & torch.isnan(expected))
    return ~same


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that comparisons work on: float8 as float32, packed float4 as bytes, complex as pairs."""
    if tensor.dtype == torch.float4_e2m1fn_x2:
        return tensor.view(torch.uint8)
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.to(torch.float32) if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


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
    dtype, got, golden = got.dtype, _readable(got), golden.to(torch.float64)
    summing = condition * _summing(dtype, terms)
    finite = torch.isfinite(golden) & torch.isfinite(got)
    wide = torch.where(finite, got.to(torch.float64), 0.0)
    gold = torch.where(finite, golden, 0.0)
    base = torch.where(finite, reference.to(torch.float64), 0.0) if reference is not None else gold
    base = torch.where(torch.isfinite(base), base, gold)
    error, yardstick = relative_l2(wide, gold), relative_l2(base, gold)
    limit = _limit(dtype, yardstick if reference is not None else None, tolerance, summing)
    excess = (wide - gold).abs() - _allowed(gold, base, dtype, tolerance, summing, limit, reference is not None)
    index = _index(int(excess.argmax()), got.shape) if got.numel() else None
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
        worst_got=_text(got, index) if index is not None else "",
        worst_expected=_text(golden, index) if index is not None else "",
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


def index_sets(
    got: torch.Tensor, scores: torch.Tensor, expected: torch.Tensor, *, margin: float, ordered: bool = False
) -> Judgement:
    """Compare chosen indices [..., K] as sets, by the scores [..., N] they were chosen for.

    -1 means none. Every index must be in range and appear once; a choice that differs passes if its scores,
    sorted, equal those of the expected choice within `margin`: ties may fall either way. With `ordered` the scores
    must come in the expected order too.
    """
    valid_got, valid_expected = got >= 0, expected >= 0
    if not bool((valid_got.sum(-1) == valid_expected.sum(-1)).all()):
        return Judgement(passed=False, rule="index_set", reason="another number of valid indices")
    if bool((got >= scores.shape[-1]).any()) or bool((got < -1).any()):
        return Judgement(passed=False, rule="index_set", reason="an index is out of range")
    if _repeats(got):
        return Judgement(passed=False, rule="index_set", reason="an index is chosen twice in one row")
    mine, theirs = _chosen_scores(got, scores), _chosen_scores(expected, scores)
    if not ordered:
        mine, theirs = mine.sort(dim=-1).values, theirs.sort(dim=-1).values
    distance = torch.where(mine == theirs, 0.0, (mine - theirs).abs())
    worst = float(distance.max()) if distance.numel() else 0.0
    if not worst <= margin:
        index = _index(int(distance.argmax()), distance.shape)
        return Judgement(
            passed=False,
            rule="index_set",
            reason=f"a chosen score is {worst:.3g} below the one at the cut, more than {margin:.3g}",
            error=worst,
            limit=margin,
            worst_index=index,
            worst_got=_text(mine, index),
            worst_expected=_text(theirs, index),
        )
    return Judgement(passed=True, rule="index_set", error=worst, limit=margin)


def _repeats(indices: torch.Tensor) -> bool:
    ordered = indices.sort(dim=-1).values
    return bool(((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any())


def _chosen_scores(indices: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    chosen = torch.gather(scores.to(torch.float64), -1, indices.clamp(min=0).to(torch.int64))
    return torch.where(indices >= 0, chosen, float("-inf"))


def _first_true(mask: torch.Tensor) -> tuple[int, ...]:
    return _index(int(mask.reshape(-1).to(torch.uint8).argmax()), mask.shape)


def _index(flat: int, shape: torch.Size) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def _text(tensor: torch.Tensor, index: tuple[int, ...]) -> str:
    return f"{tensor[index].item():.9g}" if tensor.is_floating_point() else str(tensor[index].item())

"""Elements whose value torch leaves open: left out one by one, with the reason, and never more than those."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.judging.calls import named
from day0.analyzers.judging.kinds import short_name

__all__ = ["Open", "unspecified"]

Open = tuple[torch.Tensor, str]
"""A mask of the elements that are left out, in the shape of the result, and why."""


def unspecified(op: str, inputs: CaseInputs, result: torch.Tensor) -> Iterator[Open]:
    """Yield the elements of a result whose value nobody promises."""
    name = short_name(op)
    for names, find in _RULES:
        if name in names:
            mask, reason = find(named(op, inputs), result)
            if mask is not None and mask.shape == result.shape and bool(mask.any()):
                yield mask, reason


Found = tuple[torch.Tensor | None, str]
_CAST_REASON = "a cast to {} of NaN or of a number out of its range: C++ leaves it open, and devices differ"
_FP8_REASON = "a cast to {} of a number beyond its largest: some devices saturate, torch's CPU gives NaN or infinity"


def _casts(given: dict[str, Any], result: torch.Tensor) -> Found:
    source = given.get("src", given.get("self"))
    if not isinstance(source, torch.Tensor) or not source.is_floating_point():
        return None, ""
    kind = str(result.dtype).removeprefix("torch.")
    if result.is_floating_point():
        if result.itemsize > 1 or source.itemsize == 1 or result.dtype == torch.float8_e8m0fnu:
            return None, ""
        beyond = source.to(torch.float64).abs() > float(torch.finfo(result.dtype).max)
        return _shaped(beyond & ~torch.isnan(source), result), _FP8_REASON.format(kind)
    if result.dtype == torch.bool or result.is_complex():
        return None, ""
    limits, whole = torch.iinfo(result.dtype), source.to(torch.float64).trunc()
    # 2^63 - 1 is no float64: the bounds that are not reached are.
    inside = (whole >= float(limits.min)) & (whole < float(limits.max) + (1.0 if limits.bits < 64 else 0.0))
    return _shaped(~inside, result), _CAST_REASON.format(kind)


def _shifts(given: dict[str, Any], result: torch.Tensor) -> Found:
    amount = given["other"]
    amount = amount if isinstance(amount, torch.Tensor) else torch.tensor(amount)
    outside = (amount < 0) | (amount >= result.itemsize * 8)
    return _shaped(outside, result), "a shift by less than 0 or by more bits than there are: C++ leaves it open"


def _division_by_zero(given: dict[str, Any], result: torch.Tensor) -> Found:
    other = given["other"]
    if result.is_floating_point() or not isinstance(other, torch.Tensor) or other.is_floating_point():
        return None, ""
    return _shaped(other == 0, result), "an integer divided by 0: devices differ in what they give or raise"


def _written_twice(given: dict[str, Any], result: torch.Tensor) -> Found:
    """Places of scatter that several values go to: which one stays is not specified."""
    if given.get("reduce") is not None or not given["index"].numel() or not result.dim():
        return None, ""
    dim, index = given["dim"], given["index"]
    counts = torch.zeros(result.shape, dtype=torch.int64).scatter_add(dim, index, torch.ones_like(index))
    return counts > 1, "places that several values are written to: torch does not say which one stays"


def _put_twice(given: dict[str, Any], result: torch.Tensor) -> Found:
    indices = [one if isinstance(one, torch.Tensor) else None for one in given["indices"]]
    if given["accumulate"] or any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in indices):
        return None, ""
    counts = torch.zeros(result.shape, dtype=torch.int64)
    torch.ops.aten.index_put_.default(counts, indices, torch.tensor(1), True)
    return counts > 1, "places that several values are written to: torch does not say which one stays"


def _shaped(mask: torch.Tensor, result: torch.Tensor) -> torch.Tensor | None:
    return mask.expand(result.shape) if mask.dim() <= result.dim() else None


_RULES: tuple[tuple[frozenset[str], Callable[[dict[str, Any], torch.Tensor], Found]], ...] = (
    (frozenset({"_to_copy", "to", "copy", "type_as"}), _casts),
    (
        frozenset(
            {"__lshift__", "__rshift__", "bitwise_left_shift", "bitwise_right_shift", "__ilshift__", "__irshift__"}
        ),
        _shifts,
    ),
    (frozenset({"div", "floor_divide", "fmod", "remainder"}), _division_by_zero),
    (frozenset({"scatter"}), _written_twice),
    (frozenset({"index_put", "_index_put_impl", "_unsafe_index_put"}), _put_twice),
)

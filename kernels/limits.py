"""Are constraints in a user's file possible ones? Such a file is not type-checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from day0.devices.profile_parts import DTYPES
from day0.implementation import Constraints, Limit, TensorLimit

__all__ = ["MAX_RANK", "constraint_fault"]

MAX_RANK = 64
"""Dimensions that a tensor of torch can have."""

MAX_COMBINATIONS = 64
"""Alternatives in one set of constraints: more cannot be read, and overlap is decided pair by pair."""


def constraint_fault(limits: Any) -> str:
    """Say what is wrong with the values of constraints, for people, or return an empty text."""
    if not isinstance(limits, Constraints):
        return f"expected Constraints, got the {type(limits).__name__} {limits!r:.80}"
    return next((fault for fault in _faults(limits) if fault), "")


def _faults(limits: Constraints) -> Iterator[str]:
    yield _dtype_fault("dtypes", limits.dtypes)
    yield _dtype_fault("first_dtype", limits.first_dtype)
    yield _rank_fault("", limits.min_rank, limits.max_rank)
    yield _flag_fault("contiguous", limits.contiguous)
    yield _divisor_fault(limits.multiple_of)
    if not isinstance(limits.arguments, Mapping):
        yield "arguments: expected a dict by name or position"
    else:
        for key, limit in limits.arguments.items():
            yield _argument_fault(key, limit)
    yield _equal_fault(limits.equal)
    if not isinstance(limits.any_of, tuple) or len(limits.any_of) > MAX_COMBINATIONS:
        yield f"any_of: expected a tuple of at most {MAX_COMBINATIONS} Constraints"
    else:
        yield from (f"any_of: {fault}" if (fault := constraint_fault(one)) else "" for one in limits.any_of)


def _dtype_fault(where: str, dtypes: Any) -> str:
    if not isinstance(dtypes, (frozenset, set)):
        return f"{where}: expected a frozenset of names, got {dtypes!r:.80}"
    unknown = sorted(repr(name) for name in dtypes if name not in DTYPES)
    return f"{where}: {', '.join(unknown)} is no dtype" if unknown else ""


def _rank_fault(where: str, low: Any, high: Any) -> str:
    if not _whole(low) or not 0 <= low <= MAX_RANK:
        return f"{where}min_rank: {low!r} is no number of dimensions"
    if high is not None and (not _whole(high) or not 0 <= high <= MAX_RANK):
        return f"{where}max_rank: {high!r} is no number of dimensions"
    return f"{where}min_rank {low} is more than max_rank {high}" if high is not None and low > high else ""


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _dimension(value: Any) -> bool:
    return _whole(value) and -MAX_RANK <= value < MAX_RANK


def _flag_fault(where: str, value: Any) -> str:
    return (
        "" if value is None or isinstance(value, bool) else f"{where}: expected True, False or None, got {value!r:.80}"
    )


def _divisor_fault(divisors: Any) -> str:
    if not isinstance(divisors, Mapping):
        return f"multiple_of: expected a dict from position to divisor, got {divisors!r:.80}"
    for position, divisor in divisors.items():
        if not _whole(position) or position < 0:
            return f"multiple_of: {position!r} is no position of a tensor"
        if not _whole(divisor) or divisor < 1:
            return f"multiple_of: {divisor!r} is no divisor"
    return ""


def _argument_fault(key: Any, limit: Any) -> str:
    if not isinstance(key, str) and not (_whole(key) and key >= 0):
        return f"arguments: {key!r} is neither a name nor a position"
    where = f"arguments[{key!r}]: "
    if isinstance(limit, Limit):
        return _limit_fault(where, limit)
    if not isinstance(limit, TensorLimit):
        return f"{where}expected a Limit or a TensorLimit, got {limit!r:.80}"
    fault = _dtype_fault(f"{where}dtypes", limit.dtypes) or _rank_fault(where, limit.min_rank, limit.max_rank)
    fault = fault or _flag_fault(f"{where}contiguous", limit.contiguous)
    if fault or not isinstance(limit.sizes, Mapping) or not isinstance(limit.required, bool):
        return fault or f"{where}sizes must be a dict from dimension to Limit, and required True or False"
    for dim, size in limit.sizes.items():
        if not _dimension(dim) or not isinstance(size, Limit):
            return f"{where}sizes: expected a dict from dimension to Limit, got {dim!r}: {size!r:.80}"
        fault = _limit_fault(f"{where}sizes[{dim}]: ", size) or _size_fault(f"{where}sizes[{dim}]: ", size)
        if fault:
            return fault
    return ""


def _limit_fault(where: str, limit: Limit) -> str:
    if not isinstance(limit.one_of, tuple) or not all(_plain(value) for value in limit.one_of):
        return f"{where}one_of: expected a tuple of plain values, got {limit.one_of!r:.80}"
    for name, bound in (("at_least", limit.at_least), ("at_most", limit.at_most)):
        if bound is not None and (
            isinstance(bound, bool) or not isinstance(bound, (int, float)) or not math.isfinite(bound)
        ):
            return f"{where}{name}: {bound!r:.80} is no number"
    if not _whole(limit.multiple_of) or limit.multiple_of < 1:
        return f"{where}multiple_of: {limit.multiple_of!r:.80} is no divisor"
    if limit.at_least is not None and limit.at_most is not None and limit.at_least > limit.at_most:
        return f"{where}at_least {limit.at_least} is more than at_most {limit.at_most}"
    return ""


def _plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_plain(one) for one in value)
    return value is None or isinstance(value, (bool, int, float, complex, str))


def _size_fault(where: str, limit: Limit) -> str:
    sizes = (*limit.one_of, *(bound for bound in (limit.at_least, limit.at_most) if bound is not None))
    wrong = next((size for size in sizes if not _whole(size) or size < 0), None)  # type: ignore[operator]  # whole
    return "" if wrong is None else f"{where}{wrong!r:.80} is no size"


def _equal_fault(pairs: Any) -> str:
    if not isinstance(pairs, tuple):
        return f"equal: expected a tuple of pairs, got {pairs!r:.80}"
    for pair in pairs:
        sound = isinstance(pair, tuple) and len(pair) == 2
        if not sound or not all(
            isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str) and _dimension(one[1]) for one in pair
        ):
            return f"equal: expected ((name, dimension), (name, dimension)), got {pair!r:.80}"
    return ""

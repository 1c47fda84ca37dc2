"""One value within several limits: a whole number, or an argument that is no tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from day0.devices.profile_parts import DTYPES
from day0.implementation import DtypeName, Limit, Plain
from day0.records import ListValue, ScalarValue, Value
from day0.registry.constraints import meets
from day0.registry.schemas import Parameter

__all__ = ["choose_value", "record_of", "whole_within"]


def whole_within(limits: Iterable[Limit], low: int | None) -> int | None:
    """Return a whole number within all limits: the smallest from `low` on, or a small one without it."""
    limits = tuple(limits)
    listed = next((limit.one_of for limit in limits if limit.one_of), None)
    if listed is not None:
        whole = [
            int(one) for one in listed if isinstance(one, (int, float)) and one == int(one) and type(one) is not bool
        ]
        return min((one for one in whole if (low is None or one >= low) and _all_meet(limits, one)), default=None)
    step = math.lcm(*(limit.multiple_of for limit in limits))
    lows = [math.ceil(limit.at_least) for limit in limits if limit.at_least is not None]
    highs = [math.floor(limit.at_most) for limit in limits if limit.at_most is not None]
    if low is not None or lows:
        first = -(-max([*lows, *([] if low is None else [low])]) // step) * step
    else:
        first = min(highs, default=step) // step * step
    return first if _all_meet(limits, first) else None


def _all_meet(limits: Iterable[Limit], value: Plain) -> bool:
    return all(meets(limit, value) for limit in limits)


def choose_value(one: Parameter, limits: Sequence[Limit]) -> tuple[Plain] | None:
    """Return a value of an argument that is no tensor, in a tuple; None where there is none."""
    for value in _values(one, limits):
        if _is_of(value, one) and _all_meet(limits, value):
            return (value,)
    return None


def _values(one: Parameter, limits: Sequence[Limit]) -> Iterator[Plain]:
    """Yield values to try, such that one of them fits if any does."""
    if one.has_default:
        yield one.default
    listed = next((limit.one_of for limit in limits if limit.one_of), None)
    if listed is not None:
        yield from (
            (DtypeName(value) if "ScalarType" in one.type and isinstance(value, str) else value) for value in listed
        )
        return
    numbers = [bound for limit in limits for bound in (limit.at_least, limit.at_most) if bound is not None]
    whole = whole_within(limits, None)
    plain: tuple[Plain, ...] = (*((whole,) if whole is not None else ()), *numbers, *map(float, numbers), 1, 1.0)
    plain = (*plain, False, "a", DtypeName("float32"))
    if one.is_list:
        yield from ((value,) for value in plain)
        yield ()
    yield from plain
    yield None


_PYTHON = {"bool": (bool,), "int": (int,), "float": (int, float), "number": (int, float, complex), "str": (str,)}


def _is_of(value: Plain, one: Parameter) -> bool:
    """Say whether torch would take a value for an argument of that type."""
    bare = one.type.removeprefix("Optional[").removesuffix("]") if one.is_optional else one.type
    if value is None:
        return one.is_optional or not _is_plain_type(bare)
    if bare.startswith("List["):
        element = bare.removeprefix("List[").removesuffix("]")
        return isinstance(value, tuple) and all(_of_type(part, element) for part in value)
    return _of_type(value, bare)


def _is_plain_type(bare: str) -> bool:
    return (
        bare in _PYTHON
        or bare.startswith("List[")
        or bare in ("complex", "ScalarType", "Device", "Layout", "MemoryFormat")
    )


def _of_type(value: Plain, bare: str) -> bool:
    if bare == "ScalarType":
        return isinstance(value, str) and value in DTYPES
    if bare == "complex":
        return isinstance(value, (int, float, complex)) and not isinstance(value, bool)
    if bare in _PYTHON:
        return isinstance(value, _PYTHON[bare]) and (bare == "bool" or not isinstance(value, bool))
    return isinstance(value, str) and not isinstance(value, DtypeName)


def record_of(value: Plain) -> Value:
    """Return an argument that is no tensor as it stands in a signature."""
    if isinstance(value, tuple):
        return ListValue(items=tuple(record_of(part) for part in value))
    if value is None:
        return ScalarValue(type="none", value="None")
    if isinstance(value, DtypeName):
        return ScalarValue(type="dtype", value=str(value))
    if isinstance(value, bool):
        return ScalarValue(type="bool", value=str(value))
    if isinstance(value, int):
        return ScalarValue(type="int", value=str(value))
    if isinstance(value, float):
        return ScalarValue(type="float", value=repr(value))
    return ScalarValue(type="complex" if isinstance(value, complex) else "str", value=str(value))

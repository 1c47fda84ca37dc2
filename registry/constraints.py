"""Does a call satisfy an implementation's constraints? If not, the reason: which argument, what was wanted, what came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from day0.errors import USER_ERRORS
from day0.implementation import (
    Accepted,
    Argument,
    Call,
    Constraints,
    DtypeName,
    Limit,
    Plain,
    Predicate,
    Rejected,
    TensorFacts,
    TensorLimit,
)

__all__ = ["limit_text", "meets", "refuse_by_predicate", "refuse_call"]

MISSING = object()


def refuse_call(limits: Constraints, call: Call) -> str:
    """Return the first constraint that a call breaks, for people, or an empty text."""
    for reason in _reasons(limits, call):
        if reason:
            return reason
    return ""


def _reasons(limits: Constraints, call: Call) -> Iterator[str]:
    tensors = tuple(_named_tensors(call))
    yield _dtypes(limits, call, tensors)
    yield _first_dtype(limits, call, tensors)
    for name, tensor in tensors:
        yield _rank(name, tensor, limits.min_rank, limits.max_rank)
        yield _layout(name, tensor, limits.contiguous)
    yield _divisibility(limits, tensors)
    for key, limit in sorted(limits.arguments.items(), key=lambda item: str(item[0])):
        name = _name_of(key, call)
        yield _tensor_argument(name, limit, call) if isinstance(limit, TensorLimit) else _value(name, limit, call)
    for pair in limits.equal:
        yield _equal(pair, call)
    yield _any_of(limits.any_of, call)


def _named_tensors(call: Call, only: str | None = None) -> Iterator[tuple[str, TensorFacts]]:
    for name, value in call.arguments.items():
        if only is not None and name != only:
            continue
        if isinstance(value, TensorFacts):
            yield name, value
        elif isinstance(value, tuple):
            parts = enumerate(value)
            yield from ((f"{name}[{place}]", part) for place, part in parts if isinstance(part, TensorFacts))


def _name_of(key: str | int, call: Call) -> str:
    if isinstance(key, str):
        return key
    names = tuple(call.arguments)
    return names[key] if key < len(names) else str(key)


def _dtypes(limits: Constraints, call: Call, tensors: Iterable[tuple[str, TensorFacts]]) -> str:
    asked = ((name, value) for name, value in call.arguments.items() if isinstance(value, DtypeName))
    for name, dtype in (*((name, tensor.dtype) for name, tensor in tensors), *asked):
        if limits.dtypes and dtype not in limits.dtypes:
            return f"takes {_listed(limits.dtypes)}, not {dtype} ({name})"
    return ""


def _first_dtype(limits: Constraints, call: Call, tensors: tuple[tuple[str, TensorFacts], ...]) -> str:
    if not limits.first_dtype or (tensors and tensors[0][1].dtype in limits.first_dtype):
        return ""
    came = f"{tensors[0][1].dtype} ({tensors[0][0]})" if tensors else "a call without tensors"
    return f"its first tensor must be {_listed(limits.first_dtype)}, not {came}"


def _rank(name: str, tensor: TensorFacts, low: int, high: int | None) -> str:
    rank = len(tensor.shape)
    if rank < low:
        return f"takes at least {low} dimensions, not {rank} ({name})"
    return f"takes at most {high} dimensions, not {rank} ({name})" if high is not None and rank > high else ""


def _layout(name: str, tensor: TensorFacts, contiguous: bool | None) -> str:
    if contiguous is None or tensor.contiguous is contiguous:
        return ""
    return f"{name} must {'be' if contiguous else 'not be'} contiguous, and has strides {list(tensor.stride)}"


def _divisibility(limits: Constraints, tensors: tuple[tuple[str, TensorFacts], ...]) -> str:
    for position, divisor in sorted(limits.multiple_of.items()):
        if position < len(tensors) and tensors[position][1].shape and tensors[position][1].shape[-1] % divisor:
            name, tensor = tensors[position]
            return f"the last dimension of {name} must be a multiple of {divisor}, not {tensor.shape[-1]}"
    return ""


def _tensor_argument(name: str, limit: TensorLimit, call: Call) -> str:
    tensors = tuple(_named_tensors(call, only=name))
    if not tensors:
        return f"{name} must be given" if limit.required else ""
    for label, tensor in tensors:
        if limit.dtypes and tensor.dtype not in limit.dtypes:
            return f"{label} must be {_listed(limit.dtypes)}, not {tensor.dtype}"
        reason = _rank(label, tensor, limit.min_rank, limit.max_rank) or _layout(label, tensor, limit.contiguous)
        reason = reason or _sizes(label, tensor, limit)
        if reason:
            return reason
    return ""


def _sizes(label: str, tensor: TensorFacts, limit: TensorLimit) -> str:
    for dim, wanted in sorted(limit.sizes.items()):
        size = _size(tensor, dim)
        if size is None:
            return f"{label} must have a dimension {dim}, and has {len(tensor.shape)} dimensions"
        if not meets(wanted, size):
            return f"dimension {dim} of {label} must be {limit_text(wanted)}, not {size}"
    return ""


def _size(tensor: TensorFacts, dim: int) -> int | None:
    return tensor.shape[dim] if -len(tensor.shape) <= dim < len(tensor.shape) else None


def _value(name: str, limit: Limit, call: Call) -> str:
    value = call.arguments.get(name, MISSING)
    if value is MISSING:
        return ""  # another overload, which has no such argument
    if _any_tensor(value):  # type: ignore[arg-type]  # MISSING is gone
        return f"{name} must be {limit_text(limit)}, not a tensor"
    if meets(limit, value):  # type: ignore[arg-type]  # no tensor is in it
        return ""
    return f"{name} must be {limit_text(limit)}, not {value!r}"


def _any_tensor(value: Argument) -> bool:
    return isinstance(value, TensorFacts) or (isinstance(value, tuple) and any(map(_any_tensor, value)))


def _equal(pair: tuple[tuple[str, int], tuple[str, int]], call: Call) -> str:
    found: list[tuple[str, int]] = []
    for name, dim in pair:
        for label, tensor in _named_tensors(call, only=name):
            size = _size(tensor, dim)
            if size is None:
                return f"{label} must have a dimension {dim}, and has {len(tensor.shape)} dimensions"
            found.append((f"dimension {dim} of {label}", size))
    other = next((one for one in found if one[1] != found[0][1]), None)
    return "" if other is None else f"{found[0][0]} and {other[0]} must be equal, not {found[0][1]} and {other[1]}"


def _any_of(many: tuple[Constraints, ...], call: Call) -> str:
    reasons = [refuse_call(one, call) for one in many]
    if not reasons or "" in reasons:
        return ""
    listed = "; ".join(f"({number}) {reason}" for number, reason in enumerate(reasons, 1))
    return f"none of its {len(reasons)} combinations fits: {listed}"


def meets(limit: Limit, value: Plain) -> bool:
    """Say whether a value is within a limit. Of a list, each number must be; True and False are no numbers."""
    if limit.one_of and not any(_same(one, value) for one in limit.one_of):
        return False
    if limit.at_least is None and limit.at_most is None and limit.multiple_of == 1:
        return True
    if value is None:
        return bool(limit.one_of)  # it stands there, so it is meant
    parts = value if isinstance(value, tuple) else (value,)
    return all(_within(limit, part) for part in parts)


def _same(one: Plain, other: Plain) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other and isinstance(one, bool) is isinstance(other, bool)


def _within(limit: Limit, value: Plain) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    low = limit.at_least is None or value >= limit.at_least
    high = limit.at_most is None or value <= limit.at_most
    return low and high and (limit.multiple_of == 1 or value % limit.multiple_of == 0)


def limit_text(limit: Limit) -> str:
    """Return a limit for people."""
    parts = (
        f"one of {', '.join(map(repr, limit.one_of))}" if len(limit.one_of) > 1 else "",
        repr(limit.one_of[0]) if len(limit.one_of) == 1 else "",
        f"a multiple of {limit.multiple_of}" if limit.multiple_of != 1 else "",
        f"at least {limit.at_least}" if limit.at_least is not None else "",
        f"at most {limit.at_most}" if limit.at_most is not None else "",
    )
    return " and ".join(part for part in parts if part) or "anything"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def refuse_by_predicate(predicate: Predicate, call: Call) -> str:
    """Ask an opaque predicate; one that raises or says something else has rejected the call, with that as the reason."""
    try:
        answer = predicate(call)
    except USER_ERRORS as error:
        return f"its predicate raised {type(error).__name__}: {str(error).strip()[:160] or 'without a text'}"
    if isinstance(answer, Accepted):
        return ""
    if isinstance(answer, Rejected):
        return str(answer.reason).strip() or "its predicate rejects it and gives no reason"
    return f"its predicate returned a {type(answer).__name__}, and not Accepted() or Rejected(reason)"

"""What does no candidate take, close to what was traced? Holes in the cover of an operator, each with such a call.

A hole is looked for just beyond each constraint of each candidate: the nearest call that breaks it. The reference and the
fallback would run there, so nothing is missing, but it is slow, and the next prompt may be one token longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from day0.implementation import Constraints, Implementation, Limit, TensorLimit
from day0.records import ListValue, ScalarValue, Signature, TensorValue, Value
from day0.reference_ops.signatures import signature_id
from day0.registry.constraints import meets
from day0.registry.overlap import call_text
from day0.registry.resolve import refusal
from day0.registry.schemas import parameters_of

__all__ = ["Hole", "find_holes"]

FLOATS = ("bfloat16", "float16", "float32")
LAST_RESORTS = ("reference", "cpu_fallback")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hole:
    """A call that no kernel or decomposition takes, next to one that was traced."""

    operator: str
    witness: str
    signature: Signature
    near: str
    """The traced call; the same as the witness where it is itself a hole."""
    change: str
    """What is different in the witness; empty where nothing is."""
    refusals: tuple[tuple[str, str], ...]
    """Identity and reason of every candidate, in the order in which they are tried."""


def find_holes(signatures: Sequence[Signature], candidates: Sequence[Implementation], device: str) -> tuple[Hole, ...]:
    """Return the holes around the traced calls of one operator on a torch device type, one for each kind of change.

    References and fallbacks among the candidates do not count; without any other there is nothing to look beyond, and
    nothing is found. Predicates are asked about each call.
    """
    known = [one for one in candidates if one.kind not in LAST_RESORTS]
    traced = {signature_id(one) for one in signatures}
    found: dict[str, Hole] = {}
    for signature in signatures if known else ():
        nearby = ((text, call) for text, call in _near(signature, known) if signature_id(call) not in traced)
        for change, call in (("", signature), *nearby):
            key = change or signature_id(call)
            refusals = tuple((str(one.identity), refusal(one, call, device)) for one in known)
            if key not in found and all(reason for _, reason in refusals):
                found[key] = _hole(signature, call, change, refusals)
    return tuple(sorted(found.values(), key=lambda one: (bool(one.change), one.near, one.change)))


def _hole(signature: Signature, call: Signature, change: str, refusals: tuple[tuple[str, str], ...]) -> Hole:
    return Hole(
        operator=call.op,
        witness=call_text(call),
        signature=call,
        near=call_text(signature),
        change=change,
        refusals=refusals,
    )


def _near(signature: Signature, candidates: Iterable[Implementation]) -> Iterator[tuple[str, Signature]]:
    """Yield calls that each break one constraint of a candidate, with what was changed."""
    for one in candidates:
        for limits in _all_constraints(one.constraints):
            yield from _other_dtypes(signature, limits)
            yield from _other_ranks(signature, limits)
            yield from _other_sizes(signature, limits)
            yield from _other_values(signature, limits)
            if limits.contiguous is True or any(
                isinstance(limit, TensorLimit) and limit.contiguous for limit in limits.arguments.values()
            ):
                yield "a tensor is not contiguous", _changed(signature, _spread)


def _all_constraints(limits: Constraints) -> Iterator[Constraints]:
    yield limits
    for one in limits.any_of:
        yield from _all_constraints(one)


def _changed(signature: Signature, change: Callable[[TensorValue], TensorValue]) -> Signature:
    """Return the call with every tensor replaced by what a function makes of it."""

    def of(value: Value) -> Value:
        if isinstance(value, TensorValue):
            return change(value)
        return ListValue(items=tuple(map(of, value.items))) if isinstance(value, ListValue) else value

    kwargs = {name: of(value) for name, value in signature.kwargs.items()}
    return signature.model_copy(update={"args": tuple(map(of, signature.args)), "kwargs": kwargs})


def _other_dtypes(signature: Signature, limits: Constraints) -> Iterator[tuple[str, Signature]]:
    named = [limit.dtypes for limit in limits.arguments.values() if isinstance(limit, TensorLimit)]
    for allowed in (limits.dtypes, limits.first_dtype, *named):
        for new in FLOATS if allowed else ():
            if new in allowed:
                continue

            def other(value: TensorValue, new: str = new) -> TensorValue:
                return value.model_copy(update={"dtype": new}) if value.dtype in FLOATS else value

            yield f"the floating-point tensors are {new}", _changed(signature, other)


def _other_ranks(signature: Signature, limits: Constraints) -> Iterator[tuple[str, Signature]]:
    named = [limit.max_rank for limit in limits.arguments.values() if isinstance(limit, TensorLimit)]
    for most in (limits.max_rank, *named):
        if most is None:
            continue

        def deeper(value: TensorValue, most: int = most) -> TensorValue:
            more = max(most + 1 - len(value.shape), 0)
            return _shaped(value, (*(1,) * more, *value.shape))

        yield f"there are {most + 1} dimensions", _changed(signature, deeper)


def _other_sizes(signature: Signature, limits: Constraints) -> Iterator[tuple[str, Signature]]:
    for name, tensor, dim, limit in _size_limits(signature, limits):
        old = tensor.shape[dim]
        for new in _beyond(limit, old):
            # What has one size is mostly one thing: queries and keys grow together.
            def resized(value: TensorValue, old: int = old, new: int = new) -> TensorValue:
                return _shaped(value, tuple(new if size == old else size for size in value.shape))

            yield f"dimension {dim} of {name} is {new} instead of {old}", _changed(signature, resized)


def _size_limits(signature: Signature, limits: Constraints) -> Iterator[tuple[str, TensorValue, int, Limit]]:
    tensors = _tensors(signature)
    flat = [(name, tensor) for name, many in tensors.items() for tensor in many]
    for position, divisor in limits.multiple_of.items():
        if position < len(flat) and flat[position][1].shape:
            yield *flat[position], -1, Limit(multiple_of=divisor)
    for name, limit in _by_name(signature, limits):
        for tensor in tensors.get(name, ()) if isinstance(limit, TensorLimit) else ():
            for dim, size in limit.sizes.items() if isinstance(limit, TensorLimit) else ():
                if -len(tensor.shape) <= dim < len(tensor.shape):
                    yield name, tensor, dim, size


def _tensors(signature: Signature) -> dict[str, tuple[TensorValue, ...]]:
    found = {}
    for name, value in _arguments(signature).items():
        many = value.items if isinstance(value, ListValue) else (value,)
        found[name] = tuple(one for one in many if isinstance(one, TensorValue))
    return found


def _arguments(signature: Signature) -> dict[str, Value]:
    names = [one.name for one in parameters_of(signature.op)]
    return {**dict(zip(names, signature.args, strict=False)), **signature.kwargs}


def _by_name(signature: Signature, limits: Constraints) -> Iterator[tuple[str, Limit | TensorLimit]]:
    names = [one.name for one in parameters_of(signature.op)]
    for key, limit in limits.arguments.items():
        yield key if isinstance(key, str) else names[key] if key < len(names) else str(key), limit


def _beyond(limit: Limit, value: int) -> tuple[int, ...]:
    """Return the nearest whole numbers that a limit does not allow, one on each side at most."""
    bounds = (value + 1, value - 1, *(int(one) for one in limit.one_of if isinstance(one, int)))
    bounds += tuple(
        int(bound) + step for bound, step in ((limit.at_most, 1), (limit.at_least, -1)) if bound is not None
    )
    around = {near for bound in bounds for near in (bound, bound + 1, bound - 1)}
    broken = [one for one in around if one > 0 and not meets(limit, one)]
    above = min((one for one in broken if one > value), default=None)
    below = max((one for one in broken if one < value), default=None)
    return tuple(one for one in (above, below) if one is not None)


def _other_values(signature: Signature, limits: Constraints) -> Iterator[tuple[str, Signature]]:
    """Change arguments that are no tensors; one that the call leaves to its default too."""
    arguments = _arguments(signature)
    for name, limit in _by_name(signature, limits):
        given = arguments.get(name)
        parameter = next((one for one in parameters_of(signature.op) if one.name == name), None)
        if parameter is None or not isinstance(limit, Limit) or parameter.is_tensor:
            continue
        old = _plain_number(given, parameter.default)
        if isinstance(old, bool):
            if not meets(limit, not old):
                new = ScalarValue(type="bool", value=str(not old))
                yield f"{name} is {not old}", _with(signature, name, new)
        elif old is not None:
            for number in _beyond(limit, old):
                yield (
                    f"{name} is {number} instead of {old}",
                    _with(signature, name, ScalarValue(type="int", value=str(number))),
                )


def _plain_number(given: Value | None, default: object) -> int | None:
    """Return a whole number or a truth value that an argument has, given or by default; None for anything else."""
    if given is None:
        return default if isinstance(default, int) else None
    if not isinstance(given, ScalarValue) or given.type not in ("bool", "int"):
        return None
    return given.value == "True" if given.type == "bool" else int(given.value)


def _with(signature: Signature, name: str, value: Value) -> Signature:
    """Return the call with one argument set, by position where it stands so."""
    for place, one in enumerate(parameters_of(signature.op)):
        if one.name == name and place < len(signature.args):
            args = (*signature.args[:place], value, *signature.args[place + 1 :])
            return signature.model_copy(update={"args": args})
    return signature.model_copy(update={"kwargs": dict(sorted({**signature.kwargs, name: value}.items()))})


def _shaped(value: TensorValue, shape: tuple[int, ...]) -> TensorValue:
    if shape == value.shape:
        return value
    step, stride = 1, []
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return value.model_copy(update={"shape": shape, "stride": tuple(reversed(stride)), "alias": None})


def _spread(value: TensorValue) -> TensorValue:
    return value.model_copy(update={"stride": tuple(2 * step for step in value.stride), "alias": None})

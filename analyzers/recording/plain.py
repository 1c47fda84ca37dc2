"""Arguments of any kind as those that a record can hold, the same text in every process."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.recording.fingerprint import MAX_ITEMS, shares
from day0.records import ListValue, Signature, TensorValue, Value
from day0.reference_ops.signatures import describe, describe_value

__all__ = ["describe_plain", "outputs_of", "results_of", "shared_arguments", "widen", "without_ranges"]

_SCALARS = (
    int,
    float,
    complex,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.SymInt,
    torch.SymFloat,
)


def describe_plain(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """Describe a call whose arguments may be anything: slices, functions, process groups."""
    return describe(op, tuple(_plain(value) for value in args), {name: _plain(value) for name, value in kwargs.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, (torch.Tensor, *_SCALARS)):
        return value
    if isinstance(value, (list, tuple)):
        if len(value) > MAX_ITEMS:
            return f"{type(value).__name__} of {len(value)}"
        return [_plain(item) for item in value]
    if isinstance(value, slice):
        return ":".join(_bound(one) for one in (value.start, value.stop, value.step)).removesuffix(":")
    if value is Ellipsis:
        return "..."
    if isinstance(value, torch.ScriptObject):
        return str(value._type()).rpartition(".")[2]
    # Never its `repr`: that may hold an address, or run the user's code.
    return type(value).__name__


def _bound(value: Any) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else type(value).__name__


def results_of(result: Any) -> tuple[Any, ...]:
    """Return the results of a call; an operator that only writes has none."""
    if result is None:
        return ()
    return tuple(result) if isinstance(result, (list, tuple)) else (result,)


def outputs_of(results: tuple[Any, ...]) -> tuple[Value, ...]:
    """Describe results. Ranges are left out: what a call returned once says nothing about the next."""
    return tuple(_without_range(describe_value(_plain(item))) for item in results)


def _without_range(value: Value) -> Value:
    if isinstance(value, ListValue):
        return ListValue(items=tuple(_without_range(item) for item in value.items))
    return value.model_copy(update={"range": None}) if isinstance(value, TensorValue) else value


def without_ranges(signature: Signature) -> Signature:
    """Leave the value ranges out: they belong to the operators below."""
    return Signature(
        op=signature.op,
        args=tuple(_without_range(value) for value in signature.args),
        kwargs={name: _without_range(value) for name, value in signature.kwargs.items()},
    )


def shared_arguments(named: list[tuple[str, Any]], results: tuple[Any, ...]) -> tuple[tuple[str, ...], ...]:
    """Return for each result the arguments whose storage it shares; nothing at all where none does."""
    given = [(name, tensor) for name, value in named for tensor in _tensors(value)]
    shared = tuple(
        tuple(dict.fromkeys(name for name, tensor in given if any(shares(tensor, made) for made in _tensors(result))))
        for result in results
    )
    return shared if any(shared) else ()


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [item for item in value if isinstance(item, torch.Tensor)] if isinstance(value, (list, tuple)) else []


def widen(old: Signature, new: Signature) -> Signature:
    """Let the value ranges of a signature cover one more call."""
    return Signature(
        op=old.op,
        args=tuple(_widen_value(a, b) for a, b in zip(old.args, new.args, strict=True)),
        kwargs={name: _widen_value(value, new.kwargs[name]) for name, value in old.kwargs.items()},
    )


def _widen_value(old: Value, new: Value) -> Value:
    if isinstance(old, ListValue) and isinstance(new, ListValue):
        return ListValue(items=tuple(_widen_value(a, b) for a, b in zip(old.items, new.items, strict=True)))
    if isinstance(old, TensorValue) and isinstance(new, TensorValue) and old.range and new.range:
        low, high = min(old.range[0], new.range[0]), max(old.range[1], new.range[1])
        return old.model_copy(update={"range": (low, high)})
    return old

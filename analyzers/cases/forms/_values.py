"""Signatures with some of their tensors changed."""

from __future__ import annotations

from collections.abc import Callable

from day0.records import ListValue, Signature, TensorValue, Value
from day0.reference_ops.signatures import resolve, tensor_values

__all__ = ["argument", "changed", "contiguous", "has_shared_memory", "is_dense", "read_only"]

Change = Callable[[TensorValue], TensorValue]


def changed(signature: Signature, change: Change, *, names: frozenset[str] | None = None) -> Signature:
    """Return the signature with each tensor changed, or those of the arguments with these names."""
    schema = [one.name for one in resolve(signature.op)._schema.arguments]

    def one(name: str, value: Value) -> Value:
        if names is not None and name not in names:
            return value
        if isinstance(value, TensorValue):
            return change(value)
        return (
            ListValue(items=tuple(one(name, item) for item in value.items)) if isinstance(value, ListValue) else value
        )

    args = tuple(one(schema[n] if n < len(schema) else "", value) for n, value in enumerate(signature.args))
    kwargs = {name: one(name, value) for name, value in signature.kwargs.items()}
    return signature.model_copy(update={"args": args, "kwargs": kwargs})


def argument(signature: Signature, name: str) -> Value | None:
    """Return the argument of this name, however it was given; None where it was left out."""
    schema = [one.name for one in resolve(signature.op)._schema.arguments]
    given = dict(zip(schema, signature.args, strict=False))
    return given.get(name, signature.kwargs.get(name))


def read_only(signature: Signature) -> frozenset[str]:
    """Return the names of the arguments that the schema does not write to."""
    arguments = resolve(signature.op)._schema.arguments
    return frozenset(one.name for one in arguments if one.alias_info is None or not one.alias_info.is_write)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a packed tensor."""
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


def is_dense(value: TensorValue) -> bool:
    """Say whether a tensor fills its memory without gaps or overlap, in whatever order."""
    step = 1
    for stride, size in sorted(zip(value.stride, value.shape, strict=True)):
        if size == 1:
            continue
        if stride != step:
            return False
        step *= size
    return True


def has_shared_memory(signature: Signature) -> bool:
    """Say whether arguments share memory, which a change of one layout would tear apart."""
    return any(value.alias is not None for value in tensor_values(signature))

"""A call with the same operator, dtypes, ranks and layouts, but small sizes: for trying out what sizes do not change."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch

from day0.records import ListValue, ScalarValue, Signature, TensorValue, Value
from day0.reference_ops.signatures import dtype_of, materialise, resolve, tensor_values

__all__ = ["signature_bytes", "smaller"]

_DIVISORS = (4, 16, 64, 256, 1024)
_STEP = 16
"""Sizes stay divisible by this: kernels ask for it."""


def signature_bytes(signature: Signature) -> int:
    """Return what the tensor arguments hold, each element once however often it is seen."""
    return sum(_elements(one) * dtype_of(one.dtype).itemsize for one in tensor_values(signature))


def smaller(signature: Signature, most: int) -> Signature | None:
    """Divide the large sizes of a call, equal ones alike, until it takes at most `most` bytes.

    Returns the call itself if it is small enough, and None where no divisor gives a call that torch's shape
    functions take.
    """
    if signature_bytes(signature) <= most:
        return signature
    for found in (_divided(signature, divisor) for divisor in _DIVISORS):
        if signature_bytes(found) <= most and _is_valid(found):
            return found
    return None


def _divided(signature: Signature, divisor: int) -> Signature:
    sizes = {size for one in tensor_values(signature) for size in one.shape if size > _STEP}
    small = {size: max(_STEP, size // divisor // _STEP * _STEP) for size in sizes}
    return Signature(
        op=signature.op,
        args=tuple(_value(one, small) for one in signature.args),
        kwargs={name: _value(one, small) for name, one in signature.kwargs.items()},
    )


def _value(value: Value, small: dict[int, int]) -> Value:
    if isinstance(value, ListValue):
        return ListValue(items=tuple(_value(one, small) for one in value.items))
    if isinstance(value, ScalarValue):
        whole = value.type == "int" and int(value.value) in small
        return ScalarValue(type="int", value=str(small[int(value.value)])) if whole else value
    shape = tuple(small.get(size, size) for size in value.shape)
    return value.model_copy(update={"shape": shape, "stride": _strides(value, shape), "offset": 0, "alias": None})


def _strides(value: TensorValue, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Lay the smaller tensor out as the large one: the same order of dimensions, gaps where there were gaps."""
    order = sorted(range(len(shape)), key=lambda place: value.stride[place])
    strides, step, before = [0] * len(shape), 1, 1
    for place in order:
        if value.stride[place] == 0:
            continue
        step *= 1 if value.stride[place] <= before else 2  # one gap is as good as a wide one
        strides[place] = step
        step *= max(shape[place], 1)
        before = value.stride[place] * max(value.shape[place], 1)
    return tuple(strides)


def _is_valid(signature: Signature) -> bool:
    try:
        args, kwargs = materialise(signature, "meta")
        with torch.no_grad():
            resolve(signature.op)(*args, **kwargs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return False
    return True


def _elements(value: TensorValue) -> int:
    return prod(_sizes_in_memory(value))


def _sizes_in_memory(value: TensorValue) -> Iterator[int]:
    return (size for size, step in zip(value.shape, value.stride, strict=True) if step != 0 or size == 0)

"""Signatures with one size exchanged for another wherever it stands: equal numbers are taken for one dimension.

That is a guess, and a wrong one makes no valid call; whoever derives calls has them held against the meta kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from day0.analyzers.cases.forms._values import changed, contiguous, has_shared_memory, is_dense
from day0.records import ListValue, ScalarValue, Signature, TensorValue, Value
from day0.reference_ops.signatures import tensor_values

__all__ = ["free_sizes", "resized", "with_sizes"]


def free_sizes(signature: Signature) -> tuple[int, ...]:
    """Return the sizes that dimensions have, each once, in the order of the arguments; 0 is none."""
    return tuple(dict.fromkeys(size for value in tensor_values(signature) for size in value.shape if size))


def with_sizes(signature: Signature, sizes: Sequence[int], most: int) -> Iterator[tuple[str, Signature]]:
    """Yield a name and the signature for each size that can be exchanged, with no tensor of more elements than `most`."""
    for old, new in itertools.product(free_sizes(signature), sizes):
        made = resized(signature, old, new) if new != old else None
        if made is not None and max((math.prod(one.shape) for one in tensor_values(made)), default=0) <= most:
            yield f"{old}to{new}", made


def resized(signature: Signature, old: int, new: int) -> Signature | None:
    """Return the signature with every dimension of one size given another, and lists of sizes too.

    None where arguments share memory, or where one that changes does not fill its memory.
    """
    if has_shared_memory(signature):
        return None
    if any(old in value.shape and not is_dense(value) for value in tensor_values(signature)):
        return None

    def tensor(value: TensorValue) -> TensorValue:
        if old not in value.shape:
            return value
        shape = tuple(new if size == old else size for size in value.shape)
        return value.model_copy(update={"shape": shape, "stride": _strides(value, shape), "range": value.range})

    made = changed(signature, tensor)
    args = tuple(_lists(value, old, new) for value in made.args)
    return made.model_copy(update={"args": args})


def _strides(value: TensorValue, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return dense strides in the order that the dimensions lay in before."""
    order = sorted(range(len(shape)), key=lambda dim: (-value.stride[dim], dim))
    packed = contiguous(tuple(shape[dim] for dim in order))
    return tuple(packed[order.index(dim)] for dim in range(len(shape)))


def _lists(value: Value, old: int, new: int) -> Value:
    """Exchange the size in lists of whole numbers, such as a shape to view as."""
    if not isinstance(value, ListValue):
        return value
    return ListValue(items=tuple(_size(item, old, new) for item in value.items))


def _size(value: Value, old: int, new: int) -> Value:
    if isinstance(value, ScalarValue) and value.type == "int" and value.value == str(old) and old > 3:
        return ScalarValue(type="int", value=str(new))
    return value

"""Bytes that one call has to move, where the operator reads or writes only a part of what it is given."""

from __future__ import annotations

from typing import Any

import torch

from day0.reference_ops.signatures import tensors_in

__all__ = ["moved_bytes", "size_in_bytes"]

_PICKS = frozenset({"embedding", "gather", "index", "index_select", "take", "_unsafe_index"})
"""They read of a table what the indices name: one row of an embedding, not the vocabulary."""

_PUTS = frozenset({"index_add_", "index_copy_", "index_put_", "_index_put_impl_", "scatter_", "scatter_add_"})
"""They write into a table where the indices say and leave the rest of it alone."""

_MAKES = frozenset(
    {"copy_", "fill_", "full_like", "new_full", "new_ones", "new_zeros", "ones_like", "zero_", "zeros_like"}
)
"""They write all of their result and read nothing of the tensor that they write to or resemble."""

_ALLOCATES = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})

_GROUPED = frozenset({"_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"})


def size_in_bytes(tensor: torch.Tensor) -> int:
    """Return the size of the distinct elements: what is expanded lies in memory once."""
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.element_size()
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= int(size) if stride != 0 or size == 0 else 1
    return count * tensor.element_size()


def moved_bytes(op: str, args: tuple[Any, ...], kwargs: dict[str, Any], results: tuple[Any, ...]) -> int:
    """Count each argument and each result once, except for the operators above."""
    name = op.removeprefix("aten::").partition(".")[0] if op.startswith("aten::") else ""
    if name in _ALLOCATES:
        return 0
    given, made = _total((args, kwargs)), _total(results)
    if name in _PICKS:
        return given - _total(args[:1]) + 2 * made
    if name in _PUTS:
        return given - _total(args[:1]) + _total(_values(args, kwargs))
    if name in _MAKES:
        return given - _total(args[:1]) + made
    if name in _GROUPED:
        return given + made - _idle(args)
    return given + made


def _total(tree: Any) -> int:
    return sum(size_in_bytes(tensor) for tensor in tensors_in(tree))


def _values(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return what is put: the last tensor; indices stand before it."""
    return list(tensors_in((args, kwargs)))[-1:]


def _idle(args: tuple[Any, ...]) -> int:
    """Return the bytes of the matrices that no row can meet: T rows reach T groups at most."""
    if len(args) < 2 or args[0].dim() != 2 or args[1].dim() != 3:
        return 0
    rows, groups = int(args[0].shape[0]), int(args[1].shape[0])
    return size_in_bytes(args[1]) * max(0, groups - rows) // max(1, groups)

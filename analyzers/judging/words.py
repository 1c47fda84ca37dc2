"""Places and values of tensors, for the reader."""

from __future__ import annotations

import math

import torch

__all__ = ["all_finite", "first_true", "index_of", "readable", "same_bits", "text_at"]

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by their size in bytes."""


def all_finite(tensor: torch.Tensor) -> bool:
    """Say whether no element is NaN or infinite. Takes what `readable` gives."""
    if not tensor.is_floating_point():
        return bool(torch.isfinite(tensor).all())
    # One pass: whatever is not finite shows in the sum. A sum that overflows says nothing.
    return math.isfinite(float(tensor.sum())) or bool(torch.isfinite(tensor).all())


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two tensors have one shape and dtype and the same bits: one pass, where rules need many.

    False where that cannot be told by one look: complex numbers, and tensors that are conjugated or negated when read.
    """
    kind = _WHOLE.get(one.dtype.itemsize)
    if kind is None or one.dtype != other.dtype or one.shape != other.shape or one.is_complex():
        return False
    if one.is_neg() or other.is_neg():
        return False
    return torch.equal(one.view(kind), other.view(kind))


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that comparisons work on: float8 as float32, packed float4 as bytes, complex as pairs."""
    if tensor.dtype == torch.float4_e2m1fn_x2:
        return tensor.view(torch.uint8)
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    tensor = tensor.resolve_neg()
    return tensor.to(torch.float32) if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def first_true(mask: torch.Tensor) -> tuple[int, ...]:
    """Return the index of the first True."""
    return index_of(int(mask.reshape(-1).to(torch.uint8).argmax()), mask.shape)


def index_of(flat: int, shape: torch.Size) -> tuple[int, ...]:
    """Return the index that a place in the flattened tensor has."""
    index: list[int] = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def text_at(tensor: torch.Tensor, index: tuple[int, ...]) -> str:
    """Return the value at an index, for people."""
    return f"{tensor[index].item():.9g}" if tensor.is_floating_point() else str(tensor[index].item())

"""Places and values of tensors, for the reader."""

from __future__ import annotations

import torch

__all__ = ["first_true", "index_of", "readable", "text_at"]


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

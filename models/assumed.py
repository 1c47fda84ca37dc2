"""What a run without memory takes for granted where a model asks for values that nobody has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from day0.models.known import KNOWN_BYTES, META, KnownTensor, to_real

__all__ = ["ASSUMPTIONS", "SELECTIONS", "assumed_scalar", "filled", "filled_like", "spread"]

_FILLS = {"zeros": 0, "ones": 1, "empty": 0}


def filled(name: str, args: Any, kwargs: Any, result: torch.Tensor) -> torch.Tensor:
    """Return zeros, ones or what they shall be full of, known where that is worth it."""
    word = name.removeprefix("aten::").removeprefix("new_").removesuffix("_like")
    if result.numel() * result.element_size() > KNOWN_BYTES or (word == "empty" and result.is_floating_point()):
        return result
    value = _FILLS[word] if word in _FILLS else _fill_value(name, args, kwargs)
    if not isinstance(value, (bool, int, float, complex)):
        return result
    real = torch.empty_strided(result.size(), result.stride(), dtype=result.dtype)
    return KnownTensor(real.fill_(value))


def filled_like(result: torch.Tensor, value: bool) -> torch.Tensor:
    """Return a tensor of the result's shape that is this truth value everywhere, known where that is worth it."""
    if result.numel() > KNOWN_BYTES:
        return result
    return KnownTensor(torch.full(result.shape, value, dtype=result.dtype))


def _fill_value(name: str, args: Any, kwargs: Any) -> Any:
    place = 1 if name == "aten::full_like" else 2
    return args[place] if len(args) > place else kwargs.get("fill_value")


def spread(args: Any, kwargs: Any, result: Any) -> Any:
    """Replace the indices in a selection's result by ones spread evenly over what they select from."""
    given = args[0] if args else kwargs.get("self", kwargs.get("input"))

    def invented(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype != torch.int64:
            return value
        if value.numel() * value.element_size() > KNOWN_BYTES:
            return value
        return KnownTensor(_evenly(given, value))

    return tree_map(invented, result)


def _evenly(given: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return indices of the asked shape: along the selected dimension all different, and over all used equally often."""
    if not indices.numel():
        return torch.zeros(indices.shape, dtype=torch.int64)
    dim = _selected_dim(given, indices)
    sources = given.shape[dim] if given.dim() else 1
    if indices.dim() != given.dim():  # argmax and max without keepdim
        return (torch.arange(indices.numel()) % sources).reshape(indices.shape)
    rows = torch.arange(indices.numel() // indices.shape[dim])[:, None] * indices.shape[dim]
    chosen = (rows + torch.arange(indices.shape[dim])) % sources
    moved = [*(size for place, size in enumerate(indices.shape) if place != dim), indices.shape[dim]]
    return chosen.reshape(moved).movedim(-1, dim).contiguous()


def _selected_dim(given: torch.Tensor, indices: torch.Tensor) -> int:
    if given.dim() == indices.dim():
        differing = [place for place in range(given.dim()) if given.shape[place] != indices.shape[place]]
        return differing[0] if differing else max(0, given.dim() - 1)
    return max(0, given.dim() - 1)


SELECTIONS = frozenset(
    f"aten::{name}" for name in ("topk", "sort", "argsort", "argmax", "argmin", "max", "min", "multinomial", "kthvalue")
)


def assumed_scalar(tensor: torch.Tensor) -> bool | int | float:
    """Return the number that a tensor without values is taken for."""
    if tensor.dtype == torch.bool:
        return False
    return 1.0 if tensor.is_floating_point() else 1


def _nonzero(tensor: torch.Tensor) -> torch.Tensor:
    return KnownTensor(torch.ones(tensor.shape, dtype=torch.bool).nonzero())


def _masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    known = isinstance(mask, KnownTensor) or mask.device.type != "meta"
    count = int(to_real(mask).expand(shape).sum()) if known else math.prod(shape)
    return torch.empty(count, dtype=tensor.dtype, device=META)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


ASSUMPTIONS: dict[str, Callable[..., Any]] = {
    "aten::_local_scalar_dense": assumed_scalar,
    "aten::nonzero": _nonzero,
    "aten::masked_select": _masked_select,
    "aten::equal": _equal,
    "aten::_assert_async": _nothing,
}

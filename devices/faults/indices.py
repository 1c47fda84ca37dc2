"""Indices and ties: selection, sorting, look-ups, and integers on the wrong road."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from day0.devices.faults._fault import Fault
from day0.devices.faults._tools import (
    Arguments,
    arguments,
    fault,
    instead,
    shows,
    with_arguments,
    with_call,
    with_result,
)
from day0.devices.sim.planting import Original
from day0.devices.sim.tensor import raw
from day0.devices.sim.wrap import wrap

__all__ = ["FAULTS"]

BLOCK = 64
"""How many values the faulty sort keeps in order; it never merges."""


def _dim(given: Arguments) -> int:
    return int(given.get("dim", -1))


def _runs_reversed(values: torch.Tensor, indices: torch.Tensor, dim: int) -> torch.Tensor:
    """Reverse the indices within every run of equal sorted values."""
    values, indices = values.movedim(dim, -1), indices.movedim(dim, -1)
    # Sorting the mirrored row stably by the same keys puts every run in the other order.
    rank = torch.zeros(values.shape, dtype=torch.int64)
    rank[..., 1:] = (values[..., 1:] != values[..., :-1]).cumsum(-1)
    order = rank.flip(-1).sort(dim=-1, stable=True).indices
    return indices.flip(-1).gather(-1, order).movedim(-1, dim)


def _ties_other_way(result: Any, given: Arguments) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Break ties of top-k by the last place, also at the cut: values as they were, other places."""
    values, dim = result[0], _dim(given)
    scores = given["self"].movedim(dim, -1) if given["self"].dim() else None
    if scores is None or values.numel() == 0 or scores.isnan().any():
        return None
    mirrored = scores.flip(-1).sort(dim=-1, descending=bool(given["largest"]), stable=True)
    places = scores.shape[-1] - 1 - mirrored.indices[..., : given["k"]]
    return values, places.movedim(-1, dim).contiguous()


def _stable_ignored(result: Any, given: Arguments) -> tuple[torch.Tensor, torch.Tensor] | None:
    if not given.get("stable") or not result[0].dim():
        return None
    return result[0], _runs_reversed(result[0], result[1], _dim(given)).contiguous()


def _unstable_other_way(result: Any, given: Arguments) -> tuple[torch.Tensor, torch.Tensor] | None:
    if given.get("stable") or not result[0].dim():
        return None
    return result[0], _runs_reversed(result[0], result[1], _dim(given)).contiguous()


def _largest(dtype: torch.dtype, descending: bool) -> Any:
    if dtype.is_floating_point:
        return float("-inf") if descending else float("inf")
    if dtype == torch.bool:
        return not descending
    limits = torch.iinfo(dtype)
    return limits.min if descending else limits.max


def _padding_let_through(result: Any, given: Arguments) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Rows are filled up to a power of two with the last value there is; equal ones come from the filling."""
    values, indices = result
    dim = _dim(given)
    size = values.shape[dim] if values.dim() else 0
    if size < 2 or size & (size - 1) == 0:
        return None
    tied = values == _largest(values.dtype, bool(given["descending"]))
    tied |= values.isnan()
    shape = [-1 if one == dim % values.dim() else 1 for one in range(values.dim())]
    return values, torch.where(tied, size + torch.arange(size).reshape(shape), indices)


def _unmerged(result: Any, given: Arguments) -> tuple[torch.Tensor, torch.Tensor] | None:
    tensor, dim = given["self"], _dim(given)
    if not tensor.dim() or tensor.shape[dim] <= BLOCK:
        return None
    found = [part.sort(dim=dim, descending=bool(given["descending"]), stable=True) for part in tensor.split(BLOCK, dim)]
    indices = [one.indices + number * BLOCK for number, one in enumerate(found)]
    return torch.cat([one.values for one in found], dim), torch.cat(indices, dim)


def _zero_outside(name: str, index: str) -> Callable[[Original, tuple[Any, ...], dict[str, Any]], Any]:
    """Read zeros where an index is out of range."""

    def plant(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = arguments(original, args, kwargs)
        size = given[name].shape[_dim(given) if "dim" in given else 0]
        outside = (given[index] < 0) | (given[index] >= size)
        if not outside.any():
            return original(*args, **kwargs)
        inner, named = with_call(original, args, kwargs, {index: given[index].masked_fill(outside, 0)})
        result = raw(original(*inner, **named))
        mask = outside if result.dim() == outside.dim() else outside[..., None]
        return wrap(result.masked_fill(mask, 0), ())

    return plant


def _clamped(given: Arguments) -> Arguments:
    dims = [size for size, one in zip(given["self"].shape, given["indices"], strict=False) if one is not None]
    found = iter(dims)
    kept = [
        one if one is None or one.dtype in (torch.bool, torch.uint8) else _inside(one, next(found))
        for one in given["indices"]
    ]
    return {"indices": kept}


def _inside(index: torch.Tensor, size: int) -> torch.Tensor:
    return index.clamp(-size, max(0, size - 1))


def _row_clamped(given: Arguments) -> Arguments:
    return {"index": _inside(given["index"], given["self"].shape[given["dim"]]).clamp(min=0)}


def _fresh_memory(result: Any, given: Arguments) -> torch.Tensor | None:
    """An output that nobody wrote; 7 stands for whatever was there."""
    return torch.full_like(given["self"], 7) if given["index"].numel() == 0 else None


def _unique_through_float32(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    numbers = arguments(original, args, kwargs)["self"]
    if numbers.dtype != torch.int64:
        return original(*args, **kwargs)
    args, kwargs = with_call(original, args, kwargs, {"self": numbers.to(torch.float32)})
    found, *rest = raw(original(*args, **kwargs))
    return wrap((found.to(torch.int64), *rest), ())


def _through_float32(given: Arguments) -> Arguments | None:
    tensor = given["self"]
    return {"self": tensor.to(torch.float32).to(torch.int64)} if tensor.dtype == torch.int64 else None


def _sort_of(values: list[float], **options: Any) -> Any:
    def run(device: torch.device) -> Any:
        found = torch.sort(torch.tensor(values, device=device), **options)
        return [found.values, found.indices]

    return run


def _last_of_equals(given: Arguments) -> Any:
    tensor, dim = given["self"], given["dim"]
    if dim is None or not tensor.numel() or not tensor.is_floating_point() or bool(tensor.isnan().any()):
        return None
    place = tensor.shape[dim] - 1 - tensor.flip(dim).argmax(dim)
    return place.unsqueeze(dim) if given["keepdim"] else place


def _topk(device: torch.device) -> Any:
    values, indices = torch.tensor([1.0, 1.0, 1.0, 0.0], device=device).topk(2)
    return [values, indices]


def _unique(device: torch.device) -> Any:
    numbers = torch.tensor([2**24 + 1, 2**24, 2**24 + 1], device=device)
    return torch.unique(numbers, return_inverse=True)[1]


_RANGE = (
    "https://github.com/pytorch/pytorch/issues/144824",
    "https://github.com/pytorch/pytorch/issues/123119",
    "https://github.com/pytorch/pytorch/issues/169201",
)
_SORTS = "aten::sort aten::sort.stable"
_INF = float("-inf")


FAULTS: tuple[Fault, ...] = (
    fault(
        "topk_ties_other_way",
        "indices",
        "https://github.com/PaddlePaddle/Paddle/issues/25626",
        "top-k takes the last of equal values where the CPU takes another: same values, other valid places",
        "aten::topk",
        with_result(_ties_other_way),
        shows(_topk),
        is_fault=False,
    ),
    fault(
        "unstable_sort_other_way",
        "indices",
        "https://github.com/tenstorrent/tt-metal/pull/53557",
        "a sort that was not asked to be stable reverses equal runs",
        _SORTS,
        with_result(_unstable_other_way),
        shows(_sort_of([1.0, 0.0, 1.0])),
        is_fault=False,
    ),
    fault(
        "argmax_last_of_equals",
        "indices",
        "https://github.com/flagos-ai/FlagGems/issues/4825",
        "argmax takes the last of equal values: a few of fifty answers differ, and none is wrong",
        "aten::argmax",
        instead(_last_of_equals),
        shows(lambda device: torch.tensor([[1.0, 1.0, 0.0]], device=device).argmax(-1), gives=[1]),
        is_fault=False,
    ),
    fault(
        "sort_padding_let_through",
        "indices",
        "https://github.com/pytorch/pytorch/pull/184620",
        "sort fills rows up to a power of two and returns places of the filling where values tie with it, or are NaN",
        _SORTS,
        with_result(_padding_let_through),
        shows(_sort_of([float("inf"), 1.0, 0.0], stable=True), gives=[[0.0, 1.0, float("inf")], [2, 1, 5]]),
    ),
    fault(
        "sort_blocks_not_merged",
        "indices",
        "https://github.com/pytorch/pytorch/issues/183885",
        f"sort of more than {BLOCK} values sorts blocks and does not merge them",
        _SORTS,
        with_result(_unmerged),
        shows(lambda device: torch.argsort(torch.arange(100, 0, -1, device=device))),
    ),
    fault(
        "stable_sort_is_unstable",
        "indices",
        "https://github.com/tenstorrent/tt-metal/pull/53557",
        "sort with stable=True reverses equal runs",
        "aten::sort.stable",
        with_result(_stable_ignored),
        shows(_sort_of([1.0, 0.0, 1.0], stable=True), gives=[[0.0, 1.0, 1.0], [1, 2, 0]]),
    ),
    fault(
        "index_clamped",
        "indices",
        _RANGE[0],
        "indexing out of range reads the last row in place of an error",
        "aten::index.Tensor",
        with_arguments(_clamped),
        shows(
            lambda device: torch.arange(3.0, device=device)[torch.tensor([0, 9], device=device)],
            "error",
            gives=[0.0, 2.0],
        ),
    ),
    fault(
        "index_select_clamped",
        "indices",
        _RANGE[1],
        "index_select out of range reads the last row in place of an error",
        "aten::index_select",
        with_arguments(_row_clamped),
        shows(
            lambda device: torch.arange(3.0, device=device).index_select(0, torch.tensor([0, 9], device=device)),
            "error",
            gives=[0.0, 2.0],
        ),
    ),
    fault(
        "gather_zero_outside",
        "indices",
        _RANGE[0],
        "gather out of range gives 0 in place of an error",
        "aten::gather",
        _zero_outside("self", "index"),
        shows(
            lambda device: torch.ones(3, device=device).gather(0, torch.tensor([0, 9], device=device)),
            "error",
            gives=[1.0, 0.0],
        ),
    ),
    fault(
        "embedding_zero_outside",
        "indices",
        _RANGE[2],
        "embedding of a token beyond the table gives a row of 0 in place of an error",
        "aten::embedding",
        _zero_outside("weight", "indices"),
        shows(
            lambda device: torch.nn.functional.embedding(
                torch.tensor([1, 9], device=device), torch.ones(3, 2, device=device)
            ),
            "error",
            gives=[[1.0, 1.0], [0.0, 0.0]],
        ),
    ),
    fault(
        "scatter_empty_uninitialised",
        "indices",
        "https://github.com/intel/intel-extension-for-pytorch/issues/682",
        "scatter with an empty index returns an output that nobody wrote",
        "aten::scatter.src aten::scatter.value",
        with_result(_fresh_memory),
        shows(
            lambda device: torch.ones(2, device=device).scatter(
                0, torch.zeros(0, dtype=torch.int64, device=device), 5.0
            ),
            gives=[7.0, 7.0],
        ),
    ),
    fault(
        "unique_through_float32",
        "indices",
        "https://github.com/pytorch/pytorch/issues/195595",
        "unique of int64 goes through float32, so that numbers above 2^24 fall together",
        "aten::_unique2",
        _unique_through_float32,
        shows(_unique, gives=[0, 0, 0]),
    ),
    fault(
        "int64_through_float32",
        "indices",
        "https://github.com/pytorch/pytorch/issues/195595",
        "arithmetic, comparisons and sorts of int64 go through float32",
        "aten::add.Tensor aten::sub.Tensor aten::mul.Tensor aten::cumsum aten::eq.Tensor aten::eq.Scalar "
        "aten::lt.Tensor aten::ge.Scalar aten::sort.stable",
        with_arguments(_through_float32),
        shows(lambda device: torch.tensor([2**24 + 1], device=device) + 0, gives=[2**24]),
    ),
)

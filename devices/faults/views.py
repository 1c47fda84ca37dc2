"""Views and layout: kernels that lose an offset, a stride, a write, or the order of one."""

from __future__ import annotations

from typing import Any

import torch

from day0.devices.faults._fault import Fault
from day0.devices.faults._tools import Arguments, arguments, fault, instead, seeded, shows, with_arguments, with_result
from day0.devices.sim.planting import Original

__all__ = ["FAULTS"]

WRAP = 2**10
"""Elements after which the faulty copy begins again; 2^32 on the device of the report."""


def _wrapped_copy(given: Arguments) -> Any:
    target, source = given["self"], given["src"]
    if target.is_contiguous() or not target.numel():
        return None
    places = torch.zeros(target.shape, dtype=torch.int64)
    for size, step, dim in zip(target.shape, target.stride(), range(target.dim()), strict=True):
        places += (torch.arange(size) * step).reshape([-1 if one == dim else 1 for one in range(target.dim())])
    storage = target.as_strided((target.untyped_storage().nbytes() // target.element_size(),), (1,), 0)
    values = source.expand(target.shape).to(target.dtype).reshape(-1)
    storage[(places.reshape(-1) % WRAP) + target.storage_offset()] = values
    return target


def _from_start(given: Arguments) -> Arguments | None:
    tensor = given["self"]
    return {"self": tensor.as_strided(tensor.shape, tensor.stride(), 0)} if tensor.storage_offset() else None


def _as_packed(*names: str) -> Any:
    """Read arguments that are not contiguous as if they were."""

    def change(given: Arguments) -> Arguments:
        packed: Arguments = {}
        for name in names:
            tensor = given[name]
            if not tensor.is_contiguous() and 0 not in tensor.stride():
                meta = torch.empty(tensor.shape, device="meta")
                packed[name] = tensor.as_strided(tensor.shape, meta.stride(), tensor.storage_offset()).clone()
        return packed

    return change


def _without_writing_back(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target = arguments(original, args, kwargs)["self"]
    if target.is_contiguous():
        return original(*args, **kwargs)
    original(args[0].clone(memory_format=torch.contiguous_format), *args[1:], **kwargs)
    return args[0]


def _every_second(given: Arguments) -> torch.Tensor | None:
    """Return `self[2 * index]`, zeros behind the end."""
    tensor, dim, index = given["self"], given["dim"], given["index"]
    if dim % max(1, tensor.dim()) or index < 1:
        return None
    wrong: torch.Tensor = tensor[2 * index] if 2 * index < tensor.shape[0] else torch.zeros_like(tensor[0])
    return wrong


def _first_write_wins(given: Arguments) -> Arguments:
    return {"index": given["index"].flip(0), "source": given["source"].flip(given["dim"])}


def _overlapping_copy(given: Arguments) -> Any:
    """Write into a view whose elements share memory, as if they did not."""
    target, source = given["self"], given["src"]
    shared = [
        dim for dim, (size, step) in enumerate(zip(target.shape, target.stride(), strict=True)) if size > 1 > step
    ]
    if not shared:
        return None
    values, alone = source.expand(target.shape), target
    for dim in shared:
        alone, values = alone.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    alone.copy_(values)
    return target


def _other_order(result: Any, given: Arguments) -> torch.Tensor | None:
    if result.numel() < 2 or min(result.shape) < 2:
        return None
    if result.is_contiguous():
        return result.t().contiguous().t() if result.dim() == 2 else None
    changed: torch.Tensor = result.contiguous()
    return changed


def _strided_copy(device: torch.device) -> torch.Tensor:
    base = torch.zeros(3000, device=device)
    base[::2].copy_(torch.arange(1500.0, device=device))
    return base


def _in_place(name: str, *values: Any) -> Any:
    """Change a transposed view in place and return its base."""

    def run(device: torch.device) -> torch.Tensor:
        base = torch.tensor([[-2.0, 0.5], [3.0, -4.0]], device=device)
        getattr(base.t(), name)(*(one.to(device) if isinstance(one, torch.Tensor) else one for one in values))
        return base

    return run


def _expanded_copy(device: torch.device) -> torch.Tensor:
    base = torch.zeros(1, 3, device=device)
    base.expand(2, 3).copy_(torch.arange(6.0, device=device).reshape(2, 3))
    return base


def _mixing(device: torch.device) -> torch.Tensor:
    streams, y, post, comb = seeded(1, 2, 3, 4), seeded(1, 2, 4, seed=1), seeded(1, 2, 3, seed=2), seeded(1, 2, 3, 3)
    mixed: torch.Tensor = torch.ops.day0.hyper_connection_post(
        streams.to(device), y.to(device), post.to(device), comb.to(device).transpose(-1, -2)
    )
    return mixed


def _blocks(device: torch.device) -> torch.Tensor:
    index = torch.tensor([1, 1], device=device)
    return torch.zeros(3, 2, device=device).index_copy_(0, index, torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device))


_CLAMP = "https://github.com/pytorch/pytorch/issues/110120"
_MASKED = "https://github.com/pytorch/pytorch/issues/107694"
_META = "https://github.com/pytorch/pytorch/issues/180445 https://github.com/pytorch/pytorch/issues/139312"

FAULTS: tuple[Fault, ...] = (
    fault(
        "copy_offsets_wrap",
        "views",
        "https://github.com/pytorch/pytorch/issues/182052",
        f"a copy into a view that is not contiguous takes element offsets modulo {WRAP}",
        "aten::copy_",
        instead(_wrapped_copy),
        shows(_strided_copy),
    ),
    fault(
        "offset_ignored",
        "views",
        "https://github.com/pytorch/pytorch/issues/105801",
        "unary functions of a view read from the start of its storage",
        "aten::erfinv aten::exp aten::sigmoid aten::silu aten::tanh aten::rsqrt aten::cos aten::sin",
        with_arguments(_from_start),
        shows(lambda device: torch.erfinv(torch.tensor([0.0, 0.1, 0.2, 0.3], device=device)[2:])),
    ),
    fault(
        "nonzero_transposed",
        "views",
        "https://github.com/pytorch/pytorch/issues/170175",
        "nonzero returns its places in a buffer of the other order, so that view fails or works by device",
        "aten::nonzero",
        with_result(_other_order),
        shows(lambda device: torch.nonzero(torch.eye(3, device=device)), "strides"),
    ),
    fault(
        "matmul_strides_ignored",
        "views",
        "https://github.com/ROCm/aiter/issues/5292",
        "a matrix product reads a second argument that is not contiguous as if it were packed",
        "aten::mm aten::bmm",
        with_arguments(_as_packed("mat2")),
        shows(
            lambda device: torch.eye(2, device=device) @ torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device).t(),
            gives=[[1.0, 2.0], [3.0, 4.0]],
        ),
    ),
    fault(
        "mixing_strides_ignored",
        "views",
        "https://github.com/ROCm/aiter/issues/5292",
        "the mixing of residual streams reads its matrices as if they were packed",
        "day0::hyper_connection_post",
        with_arguments(_as_packed("comb", "post")),
        shows(_mixing),
    ),
    fault(
        "clamp_not_written_back",
        "views",
        _CLAMP,
        "clamp_ of a view that is not contiguous works on a packed copy and does not write it back",
        "aten::clamp_ aten::clamp_min_ aten::clamp_max_",
        _without_writing_back,
        shows(_in_place("clamp_", 0.0), gives=[[-2.0, 0.5], [3.0, -4.0]]),
    ),
    fault(
        "masked_fill_not_written_back",
        "views",
        _MASKED,
        "masked_fill_ of a view that is not contiguous works on a packed copy and does not write it back",
        "aten::masked_fill_",
        _without_writing_back,
        shows(_in_place("masked_fill_", torch.tensor([True, False]), 9.0), gives=[[-2.0, 0.5], [3.0, -4.0]]),
    ),
    fault(
        "select_doubles_index",
        "views",
        "https://github.com/huggingface/optimum-habana/issues/961",
        "x[i] returns row 2 i, and zeros behind the last row",
        "aten::select.int",
        instead(_every_second),
        shows(lambda device: torch.arange(6.0, device=device).reshape(3, 2)[1], gives=[4.0, 5.0]),
    ),
    fault(
        "overlapping_blocks_reversed",
        "views",
        "https://github.com/vllm-project/vllm-gaudi/pull/329",
        "index_copy_ copies its blocks in reverse order, so that of two with one place the first stays",
        "aten::index_copy_",
        with_arguments(_first_write_wins),
        shows(_blocks, gives=[[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]]),
    ),
    fault(
        "overlap_not_refused",
        "views",
        "https://github.com/RBLN-SW/torch-rbln/pull/197",
        "a copy into a view whose elements share memory keeps one of the writes in place of an error",
        "aten::copy_",
        instead(_overlapping_copy),
        shows(_expanded_copy, "error", gives=[[0.0, 1.0, 2.0]]),
    ),
    fault(
        "packed_results",
        "views",
        f"{_META} https://github.com/pytorch/pytorch/pull/144736",
        "sums and products of transposed tensors come out contiguous where meta says transposed",
        "aten::add.Tensor aten::mul.Tensor",
        with_result(lambda result, given: None if result.is_contiguous() else result.contiguous()),
        shows(lambda device: torch.ones(2, 3, device=device).t() + torch.ones(2, 3, device=device).t(), "strides"),
    ),
)

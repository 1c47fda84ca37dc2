"""Randomness and determinism."""

from __future__ import annotations

from typing import Any

import torch

from day0.devices.faults._fault import Fault
from day0.devices.faults._tools import arguments, fault, run_unseen, seeded, shows
from day0.devices.sim.planting import Original
from day0.devices.sim.tensor import raw
from day0.devices.sim.wrap import wrap

__all__ = ["FAULTS"]


def _generator(original: Original) -> torch.Generator:
    """Return a generator of the fault's own, which torch.manual_seed does not reach."""
    generator: torch.Generator = original.memory.setdefault("generator", torch.Generator().manual_seed(20))
    return generator


def _other_order_each_time(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Sum the products in an order that is drawn for every call."""
    given = arguments(original, args, kwargs)
    first, second = given["mat1" if "mat1" in given else "self"], given["mat2"]
    if not first.is_floating_point():
        return original(*args, **kwargs)
    run_unseen(original, args, kwargs)
    order = torch.randperm(first.shape[-1], generator=_generator(original))
    total: torch.Tensor = torch.zeros(*first.shape[:-1], second.shape[-1])
    for part in order.split(3):
        total = total + first[..., part].float() @ second[..., part, :].float()
    if "mat1" in given:
        total = given["beta"] * given["self"].float() + given["alpha"] * total
    return wrap(total.to(first.dtype), ())


def _other_stream(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Draw which values are kept from another generator: the same distribution, the same scale."""
    given = arguments(original, args, kwargs)
    tensor, chance = given["input"], given["p"]
    if not given["train"] or chance in (0.0, 1.0):
        return original(*args, **kwargs)
    run_unseen(original, args, kwargs)
    kept = torch.rand(tensor.shape, generator=_generator(original)) >= chance
    return wrap((torch.where(kept, tensor / (1.0 - chance), 0.0).to(tensor.dtype), kept), ())


def _scale_forgotten(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Drop values without making the others larger."""
    given = arguments(original, args, kwargs)
    out, kept = raw(original(*args, **kwargs))
    return wrap((out * (1.0 - given["p"]), kept), ()) if given["train"] else wrap((out, kept), ())


def _twice(product: Any) -> Any:
    def run(device: torch.device) -> Any:
        first, second = seeded(2, 300).to(device), seeded(300, 2, seed=1).to(device)
        return torch.equal(product(first, second).cpu(), product(first, second).cpu())

    return run


def _dropout(device: torch.device) -> Any:
    torch.manual_seed(0)
    kept = torch.nn.functional.dropout(torch.ones(64, device=device), 0.5, training=True)
    return kept if device.type == "sim" else _native_dropout()


def _native_dropout() -> torch.Tensor:
    """What the device's own operator gives on the CPU, which by itself takes another one there."""
    torch.manual_seed(0)
    kept: torch.Tensor = torch.native_dropout(torch.ones(64), 0.5, True)[0]
    return kept


FAULTS: tuple[Fault, ...] = (
    fault(
        "matmul_not_reproducible",
        "random",
        "https://github.com/intel/torch-xpu-ops/issues/3216 https://github.com/pytorch/pytorch/pull/184524",
        "matrix products sum in another order in every call, whatever torch.use_deterministic_algorithms says",
        "aten::mm aten::bmm",
        _other_order_each_time,
        shows(_twice(torch.matmul), gives=False),
    ),
    fault(
        "linear_not_reproducible",
        "random",
        "https://github.com/intel/torch-xpu-ops/issues/3216",
        "products with a bias sum in another order in every call",
        "aten::addmm",
        _other_order_each_time,
        shows(_twice(lambda a, b: torch.addmm(torch.zeros_like(a[:, :2]), a, b)), gives=False),
    ),
    fault(
        "dropout_other_stream",
        "random",
        "https://github.com/intel/torch-xpu-ops/issues/2926",
        "dropout draws from another random stream: same distribution and scale",
        "aten::native_dropout",
        _other_stream,
        shows(_dropout),
        is_fault=False,
    ),
    fault(
        "dropout_scale_forgotten",
        "random",
        "https://github.com/intel/torch-xpu-ops/issues/2926",
        "dropout does not make the values that stay larger",
        "aten::native_dropout",
        _scale_forgotten,
        shows(_dropout),
    ),
)

"""How the simulated device computes where its profile says that it does not compute as the CPU: products and tiny results."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from day0.devices.profile import DeviceProfile, computes
from day0.devices.profile_parts import MatmulRule
from day0.reference_ops.signatures import dtype_name, dtype_of, tensors_in

__all__ = ["flush_subnormals", "flushes", "multiply_like"]

Kernel = Callable[..., Any]

_PLAIN = {"aten::mm": 0, "aten::bmm": 0, "aten::mv": 0, "aten::dot": 0}
_ADDED = {
    "aten::addmm": 1,
    "aten::baddbmm": 1,
    "aten::baddbmm_": 1,
    "aten::addmm_": 1,
    "aten::addmv": 1,
    "aten::addmv_": 1,
}
_FIRST_FACTOR = {**_PLAIN, **_ADDED}
"""Operators that multiply matrices, with the place of their first factor; an added matrix stands before it."""

_MANTISSA_KEPT = {"tfloat32": 10}
_MANTISSA_OF_FLOAT32 = 23


def multiply_like(name: str, profile: DeviceProfile, compute: Kernel) -> Kernel:
    """Return a kernel on CPU tensors that multiplies by the profile's rule for the dtype, else as `compute` does."""
    base = name.partition(".")[0]
    place = _FIRST_FACTOR.get(base)
    if place is None or not profile.matmul or name.endswith((".dtype", ".dtype_out")):
        return compute

    def multiply(*args: Any, **kwargs: Any) -> Any:
        left, right = args[place], args[place + 1]
        rule = profile.matmul.get(dtype_name(left.dtype))
        if rule is None:
            return compute(*args, **kwargs)
        result = _product(left, right, rule)
        if place:
            result = kwargs.get("alpha", 1) * result
            beta = kwargs.get("beta", 1)
            result = result if beta == 0 else result + beta * args[0].to(result.dtype)
        target = args[0] if base.endswith("_") else kwargs.get("out")
        if target is None:
            return result.to(left.dtype)
        if target.shape != result.shape:
            target.resize_(result.shape)
        return target.copy_(result)

    return multiply


def _product(left: torch.Tensor, right: torch.Tensor, rule: MatmulRule) -> torch.Tensor:
    """Multiply [..., m, k] by [..., k, n], vectors too, and return the sums before they are rounded to the result."""
    left, right = _round_input(left, rule.inputs), _round_input(right, rule.inputs)
    if rule.accumulate == "float64":
        return left.double() @ right.double()
    if rule.accumulate == "float32" and rule.rounding == "nearest":
        return left.float() @ right.float()
    dtype = dtype_of(rule.accumulate)
    inner = left.shape[-1]
    first = right.dim() - (2 if right.dim() > 1 else 1)
    total = torch.zeros((), dtype=torch.float64)
    for start in range(0, max(inner, 1), rule.step):
        size = min(rule.step, inner - start)
        part = left.narrow(-1, start, size).double() @ right.narrow(first, start, size).double()
        total = _rounded(total + part, dtype, rule.rounding)
    return total


def _round_input(value: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "exact" or value.dtype == torch.float64:
        return value
    if kind != "tfloat32":
        return value.to(dtype_of(kind)).float()
    dropped = _MANTISSA_OF_FLOAT32 - _MANTISSA_KEPT[kind]
    bits = value.float().contiguous().view(torch.int32)
    # Round half to even on the bits, as the hardware does; infinities and NaN have nothing to round.
    odd = (bits >> dropped) & 1
    rounded = ((bits + ((1 << (dropped - 1)) - 1) + odd) >> dropped) << dropped
    return torch.where(torch.isfinite(value), rounded.view(torch.float32), value.float())


def _rounded(value: torch.Tensor, dtype: torch.dtype, rounding: str) -> torch.Tensor:
    """Round float64 to a narrower dtype and back."""
    near = value.to(dtype)
    if rounding == "toward_zero":
        bits = near.contiguous().view(torch.int32 if dtype.itemsize == 4 else torch.int16)
        # One less in the bits of a magnitude is the next smaller one.
        near = torch.where(near.double().abs() > value.abs(), (bits - 1).view(dtype), near)
    return near.double()


def flushes(func: Any, profile: DeviceProfile) -> bool:
    """Say whether results of an operator lose their subnormals: what computes does, what moves does not."""
    return profile.subnormals == "flush" and computes(func.name()) and not func.is_view


@cache
def _largest_subnormal(dtype: torch.dtype) -> float:
    info = torch.finfo(dtype)
    return float(info.tiny - info.smallest_normal * info.eps)


def flush_subnormals(result: Any) -> None:
    """Write zeros of the same sign over subnormal values, in place. Takes CPU tensors, also in lists."""
    for tensor in (result,) if isinstance(result, torch.Tensor) else tensors_in(result):
        dtype = tensor.dtype
        if not dtype.is_floating_point or dtype.itemsize == 1:
            continue
        # One pass that says in nearly every case that there is nothing to do; NaN differs from itself and comes further.
        if torch.equal(torch.hardshrink(tensor, _largest_subnormal(dtype)), tensor):
            continue
        tiny = (tensor.abs() < torch.finfo(dtype).tiny) & (tensor != 0)
        if bool(tiny.any()):
            tensor.copy_(torch.where(tiny, tensor * 0, tensor))

"""Faults of aten operators that were reported where nobody who wrote the checker had looked: written once, tuned on never."""

from __future__ import annotations

from typing import Any

import torch

from day0.devices.faults._fault import Fault
from day0.devices.faults._tools import Arguments, fault, instead, shows, with_arguments, with_result

__all__ = ["FAULTS"]

KEPT = 16
"""Values that the faulty top-k finds; what is asked for beyond them is zero."""
SMALL_VARIANCE = 1e-6
"""Variances below it are taken as zero by the faulty layer norm."""
LARGEST_ARGUMENT = 44.0
"""Magnitude from which the faulty tanh divides infinity by infinity."""


def _zero_past_sixteen(result: Any, given: Arguments) -> tuple[torch.Tensor, torch.Tensor] | None:
    values, indices, dim = result[0].clone(), result[1].clone(), given["dim"]
    if not values.dim() or values.shape[dim] <= KEPT:
        return None
    rest = values.shape[dim] - KEPT
    values.narrow(dim, KEPT, rest).zero_()
    indices.narrow(dim, KEPT, rest).zero_()
    return values, indices


def _copied(result: Any, given: Arguments) -> Any:
    """Return the input where an integer other than int32 is summed up."""
    if given["self"].dtype in (torch.bool, torch.int32) or given["self"].is_floating_point():
        return None
    return given["self"].to(result.dtype, copy=True) if result.dtype != torch.int32 else None


def _from_start(given: Arguments) -> Arguments | None:
    tensor = given["input"]
    return {"input": tensor.as_strided(tensor.shape, tensor.stride(), 0)} if tensor.storage_offset() else None


def _normalised(result: Any, given: Arguments, variance: torch.Tensor) -> Any:
    """Return what layer norm gives with another variance, float32 [..., 1]."""
    out, mean, rstd = result
    dims = list(range(-len(given["normalized_shape"]), 0))
    wide = given["input"].float()
    scale = torch.rsqrt(variance + given["eps"])
    found = (wide - wide.mean(dims, keepdim=True)) * scale
    for name, join in (("weight", torch.mul), ("bias", torch.add)):
        if given[name] is not None:
            found = join(found, given[name].float())
    return found.to(out.dtype).contiguous(), mean, scale.reshape(rstd.shape).to(rstd.dtype)


def _one_pass_variance(result: Any, given: Arguments) -> Any:
    """Take the variance as the mean of squares without the square of the mean, and small ones as zero."""
    wide, dims = given["input"], list(range(-len(given["normalized_shape"]), 0))
    if wide.dtype == torch.float64 or not wide.numel():
        return None
    wide = wide.float()
    variance = wide.square().mean(dims, keepdim=True) - wide.mean(dims, keepdim=True).square()
    return _normalised(result, given, torch.where(variance < SMALL_VARIANCE, 0.0, variance))


def _padding_counted(result: Any, given: Arguments) -> Any:
    """Fill rows up to a power of two with zeros, and count their distance from the mean."""
    wide, dims = given["input"], list(range(-len(given["normalized_shape"]), 0))
    count = 1
    for size in given["normalized_shape"]:
        count *= size
    padding = (1 << max(0, count - 1).bit_length()) - count
    if wide.dtype == torch.float64 or not wide.numel() or not padding:
        return None
    mean = wide.float().mean(dims, keepdim=True)
    spread = (wide.float() - mean).square().mean(dims, keepdim=True)
    return _normalised(result, given, spread + mean.square() * (padding / count))


def _log_of_softmax(given: Arguments) -> torch.Tensor | None:
    if given["self"].dtype == torch.float64:
        return None
    dtype = torch.float32 if given["half_to_float"] else given["self"].dtype
    return torch.softmax(given["self"].float(), given["dim"]).log().to(dtype)


def _nan_to_infinity(result: Any, given: Arguments) -> torch.Tensor | None:
    tensor = given["self"]
    if tensor.dtype != torch.bfloat16 or not bool(tensor.isnan().any()) or given.get("decimals"):
        return None
    infinity = torch.where(torch.signbit(tensor), float("-inf"), float("inf")).to(tensor.dtype)
    return torch.where(tensor.isnan(), infinity, result)


def _infinity_over_infinity(result: Any, given: Arguments) -> torch.Tensor | None:
    if result.dtype == torch.float64 or not result.is_floating_point():
        return None
    return torch.where(given["self"].abs() > LARGEST_ARGUMENT, float("nan"), result).to(result.dtype)


def _nan_dropped(result: Any, given: Arguments) -> torch.Tensor | None:
    """Return the operand that is a number, as fmin and fmax do."""
    tensor = given["self"]
    if not tensor.is_floating_point():
        return None
    if "other" in given:
        other = given["other"]
        return torch.where(tensor.isnan(), other, torch.where(other.isnan(), tensor, result))
    bound: Any = given.get("min") if given.get("min") is not None else given.get("max")
    return torch.where(tensor.isnan(), bound, result).to(result.dtype)


def _zero_times_input(result: Any, given: Arguments) -> torch.Tensor | None:
    """Add beta times the input also where beta is zero."""
    if given["beta"] != 0 or not result.is_floating_point() or bool(torch.isfinite(given["self"]).all()):
        return None
    spoiled: torch.Tensor = result + given["self"] * 0
    return spoiled.to(result.dtype)


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    """Read as many elements as there are, in the order of the memory."""
    if tensor.is_contiguous() or 0 in tensor.stride():
        return tensor
    meta = torch.empty(tensor.shape, device="meta")
    return tensor.as_strided(tensor.shape, meta.stride(), tensor.storage_offset()).clone()


def _away_from_zero(result: Any, given: Arguments) -> torch.Tensor | None:
    tensor = given["self"]
    if given.get("decimals") or not tensor.is_floating_point():
        return None
    whole = tensor.trunc()
    return torch.where((tensor - whole).abs() == 0.5, whole + tensor.sign(), result)


def _accumulated_in_half(result: Any, given: Arguments) -> torch.Tensor | None:
    """Add up along a dimension in float16, one value after another."""
    tensor, dims = given["self"], given["dim"]
    if tensor.dtype != torch.float16 or result.dtype != torch.float16 or not dims or not tensor.numel():
        return None
    places = [dim % tensor.dim() for dim in dims]
    rows = tensor.movedim(places, list(range(len(places)))).flatten(0, len(places) - 1)
    total = torch.zeros_like(rows[0])
    for row in rows:
        total = total + row
    return total.reshape(result.shape) / (rows.shape[0] if given["mean"] else 1)


def _reduced(mean: bool) -> Any:
    return with_result(lambda result, given: _accumulated_in_half(result, given | {"mean": mean}))


def _both(one: Any, other: Any) -> Any:
    """Join two plants of one report by the operator that is called."""
    return lambda original, args, kwargs: (one if original.name.startswith("aten::mean") else other)(
        original, args, kwargs
    )


def _norm(values: list[list[float]], *, offset: int = 0, eps: float = 1e-7) -> Any:
    def run(device: torch.device) -> Any:
        rows = torch.tensor(values, device=device)[offset:]
        return torch.nn.functional.layer_norm(rows, [rows.shape[-1]], eps=eps)

    return run


def _product(device: torch.device) -> torch.Tensor:
    ones = torch.ones(1, 2, 2, device=device)
    return torch.baddbmm(torch.full((1, 1, 1), float("nan"), device=device), ones, ones, beta=0)


def _scatter(device: torch.device) -> torch.Tensor:
    source = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device).t()
    place = torch.tensor([[0, 1], [1, 0]], device=device)
    return torch.zeros(2, 2, device=device).scatter(0, place, source)


def _cat(device: torch.device) -> torch.Tensor:
    return torch.cat([torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device).t()])


def _rounded_half(device: torch.device) -> torch.Tensor:
    return torch.tensor([0.5, 1.5, -2.5], device=device).round()


_PYTORCH = "https://github.com/pytorch/pytorch"
_FAMILY = "later"

FAULTS: tuple[Fault, ...] = (
    fault(
        "topk_zero_past_sixteen",
        _FAMILY,
        f"{_PYTORCH}/issues/78915",
        f"top-k of more than {KEPT} gives zeros, values and places, for all that come after them",
        "aten::topk",
        with_result(_zero_past_sixteen),
        shows(lambda device: list(torch.arange(18.0, device=device).topk(18))),
    ),
    fault(
        "integer_cumsum_copies",
        _FAMILY,
        f"{_PYTORCH}/issues/90635",
        "cumsum of integers other than int32 returns its input",
        "aten::cumsum",
        with_result(_copied),
        shows(lambda device: torch.ones(3, dtype=torch.int64, device=device).cumsum(0), gives=[1, 1, 1]),
    ),
    fault(
        "layer_norm_offset_ignored",
        _FAMILY,
        f"{_PYTORCH}/issues/131750",
        "layer norm of a slice reads from the start of the storage",
        "aten::native_layer_norm",
        with_arguments(_from_start),
        shows(_norm([[1.0, 2.0, 3.0], [5.0, 4.0, 7.0]], offset=1)),
    ),
    fault(
        "layer_norm_small_variance_zero",
        _FAMILY,
        f"{_PYTORCH}/issues/190491 {_PYTORCH}/pull/186367",
        "layer norm takes the variance in one pass, and as zero below 1e-6",
        "aten::native_layer_norm",
        with_result(_one_pass_variance),
        shows(_norm([[-9e-4, -9e-4, 9e-4, 9e-4]])),
    ),
    fault(
        "layer_norm_counts_padding",
        _FAMILY,
        "https://github.com/triton-lang/triton/issues/9838",
        "layer norm fills rows up to a power of two with zeros, which count in the variance",
        "aten::native_layer_norm",
        with_result(_padding_counted),
        shows(_norm([[1.0, 2.0, 3.0]])),
    ),
    fault(
        "log_softmax_underflows",
        _FAMILY,
        f"{_PYTORCH}/issues/94043",
        "log_softmax is the logarithm of a softmax, which is zero for values far below the largest",
        "aten::_log_softmax",
        instead(_log_of_softmax),
        shows(lambda device: torch.tensor([0.0, 200.0], device=device).log_softmax(0), gives=[float("-inf"), 0.0]),
    ),
    fault(
        "rounding_nan_is_infinite",
        _FAMILY,
        "https://github.com/tenstorrent/tt-metal/issues/56414",
        "floor, ceil and trunc of bfloat16 turn NaN into an infinity of its sign",
        "aten::floor aten::ceil aten::trunc",
        with_result(_nan_to_infinity),
        shows(
            lambda device: torch.tensor([float("nan"), 1.5], dtype=torch.bfloat16, device=device).floor(),
            gives=[float("inf"), 1.0],
        ),
    ),
    fault(
        "tanh_overflows",
        _FAMILY,
        f"{_PYTORCH}/pull/172406 {_PYTORCH}/issues/186278",
        f"tanh of magnitudes above {LARGEST_ARGUMENT:g} divides infinity by infinity",
        "aten::tanh",
        with_result(_infinity_over_infinity),
        shows(lambda device: torch.tensor([0.0, 90.0], device=device).tanh(), gives=[0.0, float("nan")]),
    ),
    fault(
        "clamp_drops_nan",
        _FAMILY,
        "https://github.com/tile-ai/tilelang/issues/3024 https://github.com/tenstorrent/tt-metal/issues/51470",
        "clamp, maximum and minimum of NaN and a number return the number",
        "aten::clamp aten::clamp_min aten::maximum aten::minimum",
        with_result(_nan_dropped),
        shows(lambda device: torch.tensor([float("nan"), 0.5], device=device).clamp(-1.0, 1.0), gives=[-1.0, 0.5]),
    ),
    fault(
        "beta_zero_keeps_nan",
        _FAMILY,
        f"https://github.com/MooreThreads/torch_musa/issues/52 {_PYTORCH}/issues/194442",
        "products with a sum of weight 0 multiply what stands there by 0, which leaves NaN",
        "aten::baddbmm aten::addmm",
        with_result(_zero_times_input),
        shows(_product, gives=[[[float("nan")] * 2] * 2]),
    ),
    fault(
        "scatter_strides_ignored",
        _FAMILY,
        f"{_PYTORCH}/issues/175191",
        "scatter reads a source or an index that is not contiguous in the order of the memory",
        "aten::scatter.src aten::scatter_.src",
        with_arguments(lambda given: {"src": _packed(given["src"]), "index": _packed(given["index"])}),
        shows(_scatter),
    ),
    fault(
        "cat_strides_ignored",
        _FAMILY,
        f"{_PYTORCH}/issues/85675",
        "cat reads tensors that are not contiguous in the order of the memory",
        "aten::cat",
        with_arguments(lambda given: {"tensors": [_packed(one) for one in given["tensors"]]}),
        shows(_cat, gives=[[1.0, 2.0], [3.0, 4.0]]),
    ),
    fault(
        "round_away_from_zero",
        _FAMILY,
        "https://github.com/pytorch/executorch/pull/21065",
        "round takes halves away from zero, where torch takes them to the even neighbour",
        "aten::round",
        with_result(_away_from_zero),
        shows(_rounded_half, gives=[1.0, 2.0, -3.0]),
    ),
    fault(
        "half_sums_in_half",
        _FAMILY,
        f"{_PYTORCH}/issues/2391",
        "sums and means of float16 along a dimension are added up in float16",
        "aten::sum.dim_IntList aten::mean.dim",
        _both(_reduced(True), _reduced(False)),
        shows(
            lambda device: torch.tensor([60000.0, 60000.0, -60000.0], dtype=torch.float16, device=device).sum(0),
            gives=float("inf"),
        ),
    ),
)

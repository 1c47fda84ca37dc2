"""Dtypes and quantisation: nibbles, scales, bit layouts, and kernels that take fewer dtypes or sizes than they say."""

from __future__ import annotations

from typing import Any

import torch

from day0.devices.faults._fault import Fault
from day0.devices.faults._tools import Arguments, arguments, fault, instead, seeded, shows, with_arguments, with_result
from day0.devices.sim.planting import Original
from day0.reference_ops.mxfp4_decode import BLOCK, reference

__all__ = ["FAULTS"]

_SYNCS = "aten::_local_scalar_dense aten::_to_copy aten::copy_"


def _nibbles_swapped(given: Arguments) -> Arguments:
    return {"codes": (given["codes"] >> 4) | (given["codes"] << 4)}


def _other_nibble_order(given: Arguments) -> Arguments:
    return {"order": "split" if given["order"] == "low_first" else "low_first"}


def _transposed_bytes(name: str) -> Any:
    """Read a matrix of scales as if it had been stored column by column."""

    def change(given: Arguments) -> Arguments | None:
        scales = given[name]
        if scales.dim() != 2 or 1 in scales.shape:
            return None
        return {name: scales.reshape(-1).reshape(scales.shape[1], scales.shape[0]).t().contiguous()}

    return change


def _bias_one_off(given: Arguments) -> Arguments:
    return {
        "scales": torch.where(given["scales"] < 255, given["scales"] + (given["scales"] < 254), 255).to(torch.uint8)
    }


def _nan_scale_is_a_number(result: Any, given: Arguments) -> torch.Tensor | None:
    """Read scale byte 255 as 2^128, which overflows, and 0 times it as 0."""
    if not bool((given["scales"] == 255).any()):
        return None
    ones = torch.full_like(given["scales"], 127)
    plain = reference(given["codes"], ones, torch.float64, given["order"])
    power = torch.exp2(given["scales"].to(torch.float64) - 127.0)
    values: torch.Tensor = (plain * power.repeat_interleave(BLOCK, dim=-1)).to(given["dtype"])
    return values


def _decoded_as_fnuz(result: Any, given: Arguments) -> Any:
    """Decode e4m3fn bytes as e4m3fnuz: half of every value."""
    if given["values"].dtype != torch.float8_e4m3fn:
        return None
    return (result.double() / 2).to(result.dtype)


def _inverted_scale(given: Arguments) -> Arguments:
    return {"scales": 1.0 / given["scales"]}


def _never_loaded(given: Arguments) -> Arguments:
    """The scales are what the parameter was made with."""
    return {"scales": torch.full_like(given["scales"], 127 if given["scales"].dtype == torch.uint8 else 1)}


def _sentinel(given: Arguments) -> Arguments | None:
    """The last row of scales was never loaded and still holds what marks it as empty."""
    scales = given["scales"].clone()
    if not scales.numel():
        return None
    scales[-1] = float("nan")
    return {"scales": scales}


def _as_half_bits(given: Arguments) -> Arguments:
    changed: Arguments = {}
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
            changed[name] = value.contiguous().view(torch.float16).to(torch.bfloat16)
    return changed


def _late_error(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Refuse a shift by a tensor of no dimensions, but say so only when the host waits the next time."""
    if original.name.partition(".")[0] in _SYNCS.split():
        if original.memory.pop("failed", False):
            raise RuntimeError(
                "sim error: an asynchronous kernel failed; the call that is reported may not be the cause"
            )
        return original(*args, **kwargs)
    given = arguments(original, args, kwargs)
    original.memory["failed"] = given["other"].dim() == 0 and given["self"].dim() > 0
    return original(*args, **kwargs)


def _refuse_uint8(given: Arguments) -> None:
    if given["self"].dtype == torch.uint8:
        raise NotImplementedError("\"sum_sim\" not implemented for 'Byte'")


def _refuse_odd_depth(given: Arguments) -> None:
    depth = given["self"].shape[-1]
    if depth % 16:
        raise RuntimeError(f"grouped_mm: the inner dimension has to be a multiple of 16, it is {depth}")


def _rounds_down(result: Any, given: Arguments) -> Any:
    """Cut bfloat16 results off in place of rounding them: less than one unit in the last place away."""
    operands = [given["self"], given["other"]]
    if result.dtype != torch.bfloat16 or any(not isinstance(one, torch.Tensor) for one in operands):
        return None
    exact = operands[0].float() * operands[1].float()
    cut: torch.Tensor = (exact.contiguous().view(torch.int32) & -65536).view(torch.float32).to(torch.bfloat16)
    return torch.where(torch.isfinite(exact), cut, result)


def _double_in_float(given: Arguments) -> Arguments:
    return {
        name: value.to(torch.float32).to(torch.float64)
        for name, value in given.items()
        if isinstance(value, torch.Tensor) and value.dtype == torch.float64
    }


def _decode(rows: int, scales: list[list[int]], order: str = "low_first") -> Any:
    def run(device: torch.device) -> Any:
        codes = torch.arange(rows * 16 * len(scales[0])).reshape(rows, -1).to(torch.uint8).to(device)
        bytes_ = torch.tensor(scales, dtype=torch.uint8, device=device)
        return torch.ops.day0.mxfp4_decode(codes, bytes_, torch.float32, order)

    return run


def _dequantise(device: torch.device) -> Any:
    values = seeded(2, 2).to(torch.float8_e4m3fn).to(device)
    scales = torch.tensor([[2.0, 4.0], [8.0, 16.0]], device=device)
    return torch.ops.day0.fp8_block_dequantise(values, scales, 1, 1, torch.float32)


def _prefill_bfloat16(device: torch.device) -> Any:
    q, kv = (seeded(1, 2, *rest, dtype=torch.bfloat16).to(device) for rest in ((3, 5), (5,)))
    indices = torch.tensor([[[0, 1], [1, 0]]], dtype=torch.int32, device=device)
    return list(torch.ops.day0.sparse_mla_prefill(q, kv, indices, 4, 0.5))


def _grouped(device: torch.device) -> Any:
    first, second = seeded(4, 24, dtype=torch.bfloat16), seeded(1, 8, 24, seed=1, dtype=torch.bfloat16)
    offsets = torch.tensor([4], dtype=torch.int32, device=device)
    return torch._grouped_mm(first.to(device), second.to(device).transpose(-2, -1), offs=offsets)


def _shift(device: torch.device) -> Any:
    numbers = torch.tensor([8, 4], device=device)
    return (numbers >> numbers.new_ones(())).cpu()


_SCALES = "https://github.com/ROCm/rocm-libraries/pull/7439"
_UNLOADED = "https://github.com/vllm-project/vllm/pull/52501"

FAULTS: tuple[Fault, ...] = (
    fault(
        "nibbles_swapped",
        "dtype",
        "https://github.com/vllm-project/vllm/issues/41092",
        "the two nibbles of each MXFP4 byte change places",
        "day0::mxfp4_decode",
        with_arguments(_nibbles_swapped),
        shows(_decode(1, [[127]])),
    ),
    fault(
        "nibble_order_of_gguf",
        "dtype",
        "kekzl/imp#567",
        "MXFP4 bytes are unpacked in the other of the two orders: neighbours against halves of a block",
        "day0::mxfp4_decode",
        with_arguments(_other_nibble_order),
        shows(_decode(1, [[127]])),
    ),
    fault(
        "scales_interleaved",
        "dtype",
        "https://github.com/kekzl/imp/pull/58",
        "MXFP4 scales are read in the interleaved layout where a split one was given",
        "day0::mxfp4_decode",
        with_arguments(_transposed_bytes("scales")),
        shows(_decode(2, [[126, 127, 128], [127, 128, 129]])),
    ),
    fault(
        "block_scales_transposed",
        "dtype",
        "https://github.com/kekzl/imp/pull/58",
        "scales of FP8 blocks are read column by column",
        "day0::fp8_block_dequantise",
        with_arguments(_transposed_bytes("scales")),
        shows(_dequantise),
    ),
    fault(
        "scale_bias_one_off",
        "dtype",
        _SCALES,
        "E8M0 scales are decoded with a bias of 126",
        "day0::mxfp4_decode",
        with_arguments(_bias_one_off),
        shows(_decode(1, [[127]])),
    ),
    fault(
        "scale_255_is_a_number",
        "dtype",
        _SCALES,
        "E8M0 scale byte 255 is read as 2^128, not as NaN",
        "day0::mxfp4_decode",
        with_result(_nan_scale_is_a_number),
        shows(_decode(1, [[255]])),
    ),
    fault(
        "e4m3_read_as_fnuz",
        "dtype",
        _SCALES,
        "FP8 values in e4m3fn are decoded as e4m3fnuz: half of each",
        "day0::fp8_block_dequantise",
        with_result(_decoded_as_fnuz),
        shows(_dequantise),
    ),
    fault(
        "scale_divides",
        "dtype",
        "MooreThreads/vllm-musa#239 modular/modular#6600",
        "FP8 values are divided by the scale, which the checkpoint calls inverse and means to be multiplied",
        "day0::fp8_block_dequantise",
        with_arguments(_inverted_scale),
        shows(_dequantise),
    ),
    fault(
        "scales_never_loaded",
        "dtype",
        _UNLOADED,
        "scales stay what the parameter was made with: 1",
        "day0::fp8_block_dequantise day0::mxfp4_decode",
        with_arguments(_never_loaded),
        shows(_dequantise),
    ),
    fault(
        "scale_left_at_sentinel",
        "dtype",
        _UNLOADED,
        "the last row of scales still holds the NaN that marks what was not loaded",
        "day0::fp8_block_dequantise",
        with_arguments(_sentinel),
        shows(_dequantise),
    ),
    fault(
        "bfloat16_read_as_half",
        "dtype",
        "https://github.com/tile-ai/tilelang-mlir-ascend/issues/97",
        "attention reads bfloat16 inputs with the bit layout of float16, and is right for float16",
        "day0::sparse_mla_prefill day0::vision_attention aten::bmm",
        with_arguments(_as_half_bits),
        shows(_prefill_bfloat16),
    ),
    fault(
        "shift_by_scalar_tensor_fails_late",
        "dtype",
        "https://github.com/triton-lang/triton-ascend/issues/472",
        "x >> s with s of no dimensions fails on the device, which the next wait of the host reports",
        f"aten::__rshift__.Tensor aten::bitwise_right_shift.Tensor {_SYNCS}",
        _late_error,
        shows(_shift, raises=RuntimeError, message="asynchronous kernel failed"),
    ),
    fault(
        "sum_refuses_uint8",
        "dtype",
        "https://github.com/MooreThreads/torch_musa/issues/86",
        "sum is there, but not for uint8",
        "aten::sum.dim_IntList",
        instead(_refuse_uint8),
        shows(
            lambda device: torch.ones(2, dtype=torch.uint8, device=device).sum(),
            raises=NotImplementedError,
            message="not implemented for 'Byte'",
        ),
    ),
    fault(
        "grouped_matmul_refuses_odd_depth",
        "dtype",
        "https://github.com/huggingface/transformers/pull/46743",
        "grouped matrix products take inner dimensions that 16 divides, and no others",
        "aten::_grouped_mm",
        instead(_refuse_odd_depth),
        shows(_grouped, raises=RuntimeError, message="multiple of 16, it is 24"),
    ),
    fault(
        "bfloat16_cut_off",
        "dtype",
        "https://github.com/hw-native-sys/pypto/pull/1945",
        "products in bfloat16 are cut off in place of rounded: within one unit in the last place",
        "aten::mul.Tensor",
        with_result(_rounds_down),
        shows(
            lambda device: torch.tensor([1.0078125, 3.0], dtype=torch.bfloat16, device=device).mul(
                torch.tensor([1.5, 1.0078125], dtype=torch.bfloat16, device=device)
            )
        ),
        is_fault=False,
    ),
    fault(
        "float64_computed_in_float32",
        "dtype",
        "https://github.com/flagos-ai/FlagGems/pull/5375 https://github.com/flagos-ai/FlagGems/pull/6478",
        "operators on float64 compute in float32 and say nothing, so that a golden made on the device is none",
        "aten::add.Tensor aten::mul.Tensor aten::mm aten::bmm aten::sum.dim_IntList aten::exp",
        with_arguments(_double_in_float),
        shows(lambda device: torch.tensor([1.0 + 2.0**-40], dtype=torch.float64, device=device) + 0, gives=[1.0]),
        needs=("float64",),
    ),
)

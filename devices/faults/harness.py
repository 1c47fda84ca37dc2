"""Faults that weak checkers let pass, and replacements that never run; and the rows that no device can have."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from day0.devices.faults._fault import Fault, NotOnADevice
from day0.devices.faults._tools import Arguments, fault, shows, with_result
from day0.devices.sim.planting import Original
from day0.devices.sim.state import STATE
from day0.devices.sim.tensor import raw
from day0.devices.sim.wrap import wrap
from day0.reference_ops.load import contract_of

__all__ = ["FAULTS", "NOT_ON_A_DEVICE"]

_REPLACEABLE = (
    "aten::rsqrt aten::silu aten::topk aten::native_layer_norm aten::histc aten::_grouped_mm aten::neg "
    "day0::kda_recurrent day0::lightning_indexer day0::mxfp4_decode day0::sparse_mla_prefill day0::topk_tokens"
)


def _all_nan(result: Any, given: Arguments) -> torch.Tensor | None:
    return torch.full_like(result, float("nan")) if result.is_floating_point() else None


def _half_as_much_again(result: Any, given: Arguments) -> Any:
    return result * 1.5 if result.is_floating_point() else None


def _one_in_four(result: Any, given: Arguments) -> Any:
    """Halve the result where the first input has certain last bits: one of four inputs, on average."""
    first = given["self"]
    if not first.numel() or first.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return None
    bits = first.flatten()[:1].float().abs().mul(4.0).round().to(torch.int64).item()
    return result * 0.5 if bits % 4 == 1 else None


def _large_ones_too_large(result: Any, given: Arguments) -> Any:
    """Double what is larger than everything around it: much by the expected value, little by the value itself."""
    if not result.is_floating_point() or result.numel() < 2:
        return None
    largest = result.abs() == result.abs().max()
    return torch.where(largest, result * 2, result)


def _never_replaced(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run what was there before a replacement was registered: the registry's entry is shadowed by an earlier one."""
    native = STATE.kernels.get(original.name)
    if native is not None:
        return native(*args, **kwargs)
    contract = contract_of(original.name)
    compute = contract.reference if contract is not None else original.func
    return wrap(compute(*raw(args), **{name: raw(value) for name, value in kwargs.items()}), (*args, *kwargs.values()))


def _replacement_calls(device: torch.device) -> int:
    """Register a replacement for neg and count how often it ran."""
    calls = []

    def replacement(self: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return self * -1

    key = "PrivateUse1" if device.type == "sim" else "CPU"
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        library.impl("neg", replacement, key, allow_override=True)
    try:
        torch.neg(torch.ones(1, device=device))
    finally:
        library._destroy()
    return len(calls)


def _four_products(device: torch.device) -> Any:
    return [torch.full((1, 1), number / 4, device=device) @ torch.ones(1, 1, device=device) for number in range(4)]


FAULTS: tuple[Fault, ...] = (
    fault(
        "all_nan",
        "harness",
        "https://github.com/sgl-project/sgl-kernel-npu/pull/732",
        "silu and softmax return NaN everywhere, which a helper that ignores NaN lets pass",
        "aten::silu aten::_softmax aten::sigmoid",
        with_result(_all_nan),
        shows(lambda device: torch.ones(2, device=device).sigmoid(), gives=[float("nan")] * 2),
    ),
    fault(
        "half_as_much_again",
        "harness",
        "https://github.com/tenstorrent/tt-metal/pull/23027",
        "matrix products come out 1.5 times too large: correlation stays 1",
        "aten::mm aten::addmm",
        with_result(_half_as_much_again),
        shows(lambda device: torch.ones(1, 2, device=device) @ torch.ones(2, 1, device=device), gives=[[3.0]]),
    ),
    fault(
        "largest_doubled",
        "harness",
        "https://github.com/tenstorrent/tt-metal/pull/56338 https://github.com/tenstorrent/tt-metal/pull/25525",
        "the largest value of a matrix product is doubled: half as wrong if expected and actual are swapped",
        "aten::mm aten::addmm",
        with_result(_large_ones_too_large),
        shows(
            lambda device: torch.ones(1, 1, device=device) @ torch.tensor([[1.0, 3.0]], device=device),
            gives=[[1.0, 6.0]],
        ),
    ),
    fault(
        "replacement_never_runs",
        "harness",
        "https://github.com/meta-pytorch/BackendBench/issues/133",
        "what was registered over a kernel never runs: the entry before it is found first",
        _REPLACEABLE,
        _never_replaced,
        shows(_replacement_calls, gives=0),
    ),
    fault(
        "one_input_in_four",
        "harness",
        "https://github.com/NVIDIA/TensorRT/issues/4607",
        "matrix products come out half as large for one of four inputs",
        "aten::mm",
        with_result(_one_in_four),
        shows(_four_products, gives=[[[0.0]], [[0.125]], [[0.5]], [[0.75]]]),
    ),
)

NOT_ON_A_DEVICE: tuple[NotOnADevice, ...] = (
    NotOnADevice(
        row="catalogue 11, meta side",
        source="https://github.com/pytorch/pytorch/issues/180445",
        reason="a wrong meta kernel belongs to torch, not to a device; packed_results is the same difference, seen from "
        "the device's side",
    ),
    NotOnADevice(
        row="catalogue 54",
        source="https://github.com/deepseek-ai/DeepSeek-V3/issues/374",
        reason="a loop over experts that depends on data is the model's own code: a model for the trace stage",
    ),
    NotOnADevice(
        row="catalogue 49, late renaming",
        source="https://github.com/pytorch/pytorch/issues/134293",
        reason="torch names a backend once in the life of a process: nothing that can be switched on and off; a hook "
        "that was left out is generator_hook_missing",
    ),
    NotOnADevice(
        row="catalogue 63, swapped arguments",
        source="https://github.com/tenstorrent/tt-metal/pull/56338",
        reason="the comparer itself is wrong: its own self-test; largest_doubled is what it would let pass",
    ),
    NotOnADevice(
        row="catalogue 65, two score files",
        source="https://github.com/flagos-ai/FlagGems/issues/4825",
        reason="statistics over answers, no kernel; argmax_last_of_equals makes a few answers differ legitimately",
    ),
    NotOnADevice(
        row="model_ops 12",
        source="ROCm/ATOM#1260",
        reason="shared index layers have no weights: a loader that builds them anyway",
    ),
    NotOnADevice(
        row="model_ops 17",
        source="sgl-project/sglang-jax#1559",
        reason="A_log is stored longer than it is used: cut by the converter, which no kernel sees",
    ),
    NotOnADevice(
        row="model_ops 18",
        source="https://github.com/NVIDIA-NeMo/Automodel",
        reason="lists of layers that count from 1: reading of the config",
    ),
    NotOnADevice(
        row="model_ops 19",
        source="https://github.com/ggml-org/llama.cpp",
        reason="one name and shape for two tensors: the converter has to tell them apart by layer type",
    ),
)

"""Coverage and fallback: kernels that are not there, or run elsewhere, and errors of the wrong class."""

from __future__ import annotations

from typing import Any

import torch

from day0.devices.faults._fault import Fault
from day0.devices.faults._tools import fault, seeded, shows
from day0.devices.sim.kernels import run_on_cpu
from day0.devices.sim.planting import Original

__all__ = ["FAULTS"]


def _missing(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Raise what torch raises for an operator without a kernel."""
    raise NotImplementedError(
        f"Could not run '{original.name}' with arguments from the 'sim' backend: no kernel is registered for it"
    )


def _on_cpu(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return run_on_cpu(original.func, args, kwargs)


def _on_cpu_without_out(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Fall back, which works until the fallback shall write into an argument."""
    result = _on_cpu(original, args, kwargs)
    if "out" in kwargs:
        raise RuntimeError("sim fallback: cannot copy back into an 'out' argument")
    return result


def _on_cpu_where_there_is_none(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise NotImplementedError(
        f"Could not run '{original.name}' with arguments from the 'CPU' backend: the fallback of sim has no kernel for it"
    )


def _wrong_class(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return original(*args, **kwargs)
    except RuntimeError as error:
        if "same device" not in str(error):
            raise
        raise NotImplementedError(str(error)) from None


def _refuse_one_row(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args[0].shape[0] == 1:
        raise RuntimeError(f"{original.name}: the sim device has no kernel for one row, which decoding asks for")
    return original(*args, **kwargs)


def _hook_missing(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise RuntimeError("Please register a generator to the PrivateUse1HooksInterface: the sim device has left it out")


def _isin_out(device: torch.device) -> Any:
    numbers = torch.tensor([1, 2], device=device)
    return torch.isin(numbers, numbers[:1], out=torch.zeros(2, dtype=torch.bool, device=device))


def _two_devices(device: torch.device) -> Any:
    return torch.ones(2, device=device) + torch.ones(2)


_MUSA = "https://github.com/MooreThreads/torch_musa/issues"

FAULTS: tuple[Fault, ...] = (
    fault(
        "cumprod_missing",
        "coverage",
        f"{_MUSA}/17",
        "there is no kernel for cumprod",
        "aten::cumprod",
        _missing,
        shows(
            lambda device: torch.ones(2, device=device).cumprod(0),
            raises=NotImplementedError,
            message="Could not run 'aten::cumprod'",
        ),
    ),
    fault(
        "where_missing",
        "coverage",
        f"{_MUSA}/72",
        "there is no kernel for where",
        "aten::where.self aten::where.ScalarSelf aten::where.ScalarOther aten::where.Scalar",
        _missing,
        shows(
            lambda device: torch.where(torch.ones(2, device=device) > 0, torch.ones(2, device=device), 0.5),
            raises=NotImplementedError,
            message="Could not run 'aten::where",
        ),
    ),
    fault(
        "std_missing",
        "coverage",
        f"{_MUSA}/72",
        "there is no kernel for std.correction",
        "aten::std.correction",
        _missing,
        shows(
            lambda device: torch.ones(2, device=device).std(),
            raises=NotImplementedError,
            message="Could not run 'aten::std.correction'",
        ),
    ),
    fault(
        "fallback_crashes_on_out",
        "coverage",
        "https://github.com/Ascend/pytorch/issues/40 https://github.com/pytorch/pytorch/issues/136302",
        "isin falls back to the CPU, and crashes where an out argument is given",
        "aten::isin.Tensor_Tensor_out aten::isin.Tensor_Tensor",
        _on_cpu_without_out,
        shows(_isin_out, "error", "counters", raises=RuntimeError, message="'out' argument"),
    ),
    fault(
        "fallback_without_cpu_kernel",
        "coverage",
        "https://github.com/vllm-project/vllm-omni/pull/755",
        "convolution goes to the fallback, for which the CPU has no kernel",
        "aten::convolution_overrideable",
        _on_cpu_where_there_is_none,
        shows(
            lambda device: torch.nn.functional.conv1d(
                torch.ones(1, 1, 3, device=device), torch.ones(1, 1, 2, device=device)
            ),
            raises=NotImplementedError,
            message="from the 'CPU' backend",
        ),
    ),
    fault(
        "falls_back_silently",
        "coverage",
        "https://github.com/pytorch/xla/pull/6559",
        "reductions, look-ups and sorts run on the CPU and say nothing: right values, and transfers",
        "aten::cumsum aten::sort.stable aten::index_select aten::gather aten::mean.dim aten::_softmax",
        _on_cpu,
        shows(lambda device: torch.ones(3, device=device).cumsum(0), "counters"),
    ),
    fault(
        "mismatch_of_wrong_class",
        "coverage",
        "https://github.com/intel/torch-xpu-ops/issues/5125",
        "tensors of two devices raise NotImplementedError, which callers take for a missing kernel",
        "aten::add.Tensor aten::mul.Tensor aten::mm",
        _wrong_class,
        shows(_two_devices, raises=NotImplementedError, message="same device", on_cpu=False),
    ),
    fault(
        "generator_hook_missing",
        "coverage",
        "https://github.com/pytorch/pytorch/issues/160909 https://github.com/pytorch/pytorch/issues/95207",
        "the backend was registered without its hook for generators: random operators stop",
        "aten::bernoulli_.float aten::normal_ aten::uniform_ aten::native_dropout aten::random_ aten::random_.from "
        "aten::exponential_ aten::multinomial",
        _hook_missing,
        shows(
            lambda device: torch.ones(2, device=device).uniform_(1.0, 1.0),
            raises=RuntimeError,
            message="register a generator",
        ),
    ),
    fault(
        "no_kernel_for_one_row",
        "coverage",
        "https://github.com/huggingface/transformers/pull/47107",
        "matrix products and experts have no kernel for one row, the path that decoding takes and prefill does not",
        "aten::mm aten::addmm day0::fused_experts",
        _refuse_one_row,
        shows(
            lambda device: seeded(1, 2).to(device) @ seeded(2, 2).to(device),
            raises=RuntimeError,
            message="no kernel for one row",
        ),
    ),
)

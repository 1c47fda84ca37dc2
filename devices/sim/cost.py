"""What a kernel costs on the simulated device: a roofline from the profile, and what each launch takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from day0.devices.leaves import is_metadata_view
from day0.devices.profile import DeviceProfile
from day0.devices.sim.state import STATE
from day0.reference_ops._spec import Operator
from day0.reference_ops.load import contract_of
from day0.reference_ops.signatures import dtype_name, tensors_in

__all__ = ["is_free", "roofline", "run_as_one", "spend"]

_NOTHING_RUNS = frozenset(
    {"aten::alias", "aten::detach", "aten::empty", "aten::empty_strided", "aten::lift", "aten::lift_fresh"}
)
"""They make a tensor or another name for one, and no kernel runs."""


def is_free(func: Any) -> bool:
    """Say whether no kernel runs for an operator: views and empty tensors."""
    name = func.name()
    return name.partition(".")[0] in _NOTHING_RUNS or func.is_view or is_metadata_view(name)


def spend(func: Any, given: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Count work and time of one kernel. Within a kernel of somebody's own nothing is: that counts as a whole.

    `given` are the tensors among the arguments.
    """
    if STATE.inside:
        return
    name = func.name()
    contract = contract_of(name)
    moved = _bytes(contract, given, args, kwargs, result)
    flops = _flops(func, contract, args, kwargs, result)
    counters = STATE.counters
    counters.moved_bytes += moved
    counters.flops += flops
    seconds = roofline(STATE.profile, moved, flops, _compute_dtype(given))
    counters.picoseconds[name] += round(seconds * 1e12)


def roofline(profile: DeviceProfile, moved: int, flops: int, dtype: str) -> float:
    """Return the seconds of one kernel: the longer of moving and computing, and its launch."""
    rate = profile.tflops.get(dtype, 0.0) or max(profile.tflops.values(), default=0.0)
    compute = flops / (rate * 1e12) if rate else 0.0
    return max(moved / (profile.bandwidth_gb_s * 1e9), compute) + profile.launch_us * 1e-6


def run_as_one(func: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a kernel that somebody registered for an operator with a contract, at the cost that the contract states.

    What it is written with here is not what it would be on the device.
    """
    if contract_of(func.name()) is None:
        return run(*args, **kwargs)
    STATE.inside += 1
    try:
        result = run(*args, **kwargs)
    finally:
        STATE.inside -= 1
    spend(func, list(tensors_in((args, kwargs))), args, kwargs, result)
    return result


def _flops(func: Any, contract: Operator | None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Count by the operator's contract, else as torch counts; 0 where nobody does."""
    if contract is not None and contract.flops is not None:
        return int(contract.flops(*args, **kwargs))
    count = flop_registry.get(func._overloadpacket)
    return (
        int(count(*args, **{name: one for name, one in kwargs.items() if name != "out"}, out_val=result))
        if count
        else 0
    )


def _bytes(
    contract: Operator | None, tensors: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> int:
    """Count as the contract says, else each argument and each result once; what is written in place is a result.

    Only what lies in the device's memory counts: the way to the host has a rate of its own.
    """
    if contract is not None and contract.bytes is not None:
        return int(contract.bytes(*args, **kwargs))
    if "out" in kwargs:  # it is among the results
        tensors = list(tensors_in((args, {name: one for name, one in kwargs.items() if name != "out"})))
    results = (result,) if isinstance(result, torch.Tensor) else tensors_in(result)
    total = 0
    for one in (*tensors, *results):
        if one.device.type == "sim":
            total += one.nbytes
    return total


def _compute_dtype(tensors: list[torch.Tensor]) -> str:
    for one in tensors:
        if one.dtype.is_floating_point:
            return dtype_name(one.dtype)
    return dtype_name(tensors[0].dtype if tensors else torch.float32)

"""The last resort: run an operator on the CPU, with the transfers. Always counted, never silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from day0.devices.leaves import leaf_dtypes, leaf_ranks
from day0.devices.profile import cpu_profile
from day0.devices.support import supports
from day0.hashing import hash_file
from day0.implementation import Implementation
from day0.records import Signature
from day0.reference_ops.load import contract_of
from day0.reference_ops.signatures import resolve, tensors_in

__all__ = ["cpu_fallback", "refuse_fallback", "run_on_cpu"]

FALLBACK_RANK = 1000


def cpu_fallback(op: str) -> Implementation:
    """Return the CPU fallback of an operator as an implementation."""
    contract = contract_of(op)

    def run(*args: Any, **kwargs: Any) -> Any:
        return run_on_cpu(op, args, kwargs)

    return Implementation(
        operator=op,
        contract=contract.version if contract else 1,
        id="cpu_fallback",
        version="1.0",
        kind="cpu_fallback",
        run=run,
        why="runs on the CPU with the transfers: slow, but right",
        rank=FALLBACK_RANK,
        origin="registry/fallback.py",
        source_hash=hash_file(Path(__file__)),
    )


def refuse_fallback(signature: Signature) -> str:
    """Say why a call cannot fall back to the CPU, or return an empty text."""
    if resolve(signature.op).is_view:
        return "it returns a view, and a view cannot point from the device into the CPU's memory"
    found = supports(cpu_profile(), signature.op, leaf_dtypes(signature), leaf_ranks(signature))
    name = signature.op.partition(".")[0]
    if found.supported or _composite_on_cpu(signature.op) or name.startswith("day0::"):
        return ""
    return f"the CPU lacks it too: {found.reason}"


def _composite_on_cpu(op: str) -> bool:
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(op, "CPU")) and not bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(op, "CPU")
    )


def run_on_cpu(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Move the arguments to the CPU, run the operator there, write mutated arguments back, move results home."""
    overload = resolve(op)
    home = next((tensor.device for tensor in tensors_in((args, kwargs)) if tensor.device.type != "cpu"), None)
    moved_args, moved_kwargs = _to_cpu(args), _to_cpu(kwargs)
    result = overload(*moved_args, **moved_kwargs)
    written = _write_back(overload, args, kwargs, moved_args, moved_kwargs)
    return _home(result, home, written)


def _to_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("cpu")
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, (list, tuple)):
        return type(value)(_to_cpu(item) for item in value)
    if isinstance(value, dict):
        return {name: _to_cpu(item) for name, item in value.items()}
    return value


def _write_back(
    overload: torch._ops.OpOverload, args: Any, kwargs: Any, moved_args: Any, moved_kwargs: Any
) -> dict[int, torch.Tensor]:
    """Copy what the operator wrote into the caller's tensors; return them by the id of their copy."""
    written: dict[int, torch.Tensor] = {}
    for position, argument in enumerate(overload._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        keyed = argument.name in kwargs
        mine = kwargs[argument.name] if keyed else args[position] if position < len(args) else None
        copy = moved_kwargs[argument.name] if keyed else moved_args[position] if position < len(args) else None
        if isinstance(mine, torch.Tensor) and isinstance(copy, torch.Tensor):
            if mine.shape != copy.shape:
                mine.resize_(copy.shape)
            mine.copy_(copy)
            written[id(copy)] = mine
    return written


def _home(value: Any, device: torch.device | None, written: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return written[id(value)] if id(value) in written else value if device is None else value.to(device)
    if isinstance(value, (list, tuple)):
        return tuple(_home(item, device, written) for item in value)
    return value

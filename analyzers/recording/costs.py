"""What one call costs: floating-point operations, bytes, and what goes between ranks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from day0.analyzers.recording.flops import torch_flops
from day0.analyzers.recording.moved import moved_bytes, size_in_bytes
from day0.devices.leaves import is_metadata_view
from day0.records import Collective
from day0.reference_ops.load import contract_of
from day0.reference_ops.signatures import tensors_in

__all__ = ["collective", "count_bytes", "count_flops", "is_collective"]

_NAMESPACES = ("c10d::", "_c10d_functional::", "_dtensor::")
_SILENT = frozenset({"wait_tensor", "_wrap_tensor_autograd", "barrier", "monitored_barrier_"})
"""They stand in the namespaces of the collectives and move nothing."""


def count_flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Count by the operator's contract, else as torch counts; 0 where nobody does."""
    contract = contract_of(func.name())
    if contract is not None and contract.flops is not None:
        return int(contract.flops(*args, **kwargs))
    return torch_flops(func, args, kwargs, result)


def count_bytes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any) -> int:
    """Count what has to move: as the contract says, else what the operator reads and writes; views move nothing."""
    name = func.name()
    if is_collective(name):
        # Results of the in-place ones are the arguments again.
        return sum(size_in_bytes(tensor) for tensor in tensors_in((args, kwargs))) if not _is_silent(name) else 0
    if func.is_view or is_metadata_view(name):
        return 0
    contract = contract_of(func.name())
    if contract is not None and contract.bytes is not None:
        return int(contract.bytes(*args, **kwargs))
    return moved_bytes(name, args, kwargs, results)


def is_collective(op: str) -> bool:
    """Say whether an operator belongs to those that talk to other ranks."""
    return op.startswith(_NAMESPACES)


def _is_silent(op: str) -> bool:
    return op.partition("::")[2].partition(".")[0] in _SILENT


def collective(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Collective | None:
    """Return what a collective moves, from the tensors that this rank gives; None for all other operators."""
    op = func.name()
    if not is_collective(op) or _is_silent(op):
        return None
    kind = _kind(op)
    ranks = _ranks(args, kwargs)
    given = sum(size_in_bytes(tensor) for tensor in tensors_in(_inputs(func, args)))
    return Collective(kind=kind, ranks=ranks, bytes=given, wire_bytes=_wire_bytes(kind, given, ranks))


@lru_cache(maxsize=256)
def _kind(op: str) -> Any:
    name = op.partition("::")[2].replace("allreduce", "all_reduce").replace("allgather", "all_gather")
    name = name.replace("alltoall", "all_to_all").replace("_reduce_scatter", "reduce_scatter")
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
    return next((kind for kind in kinds if name.lstrip("_").startswith(kind)), "other")


def _inputs(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments that are read: c10d's own operators take the buffers for results too."""
    arguments = func._schema.arguments
    named = [(arguments[number].name, value) for number, value in enumerate(args)]
    read = tuple(value for name, value in named if "output" not in name)
    return read or args


def _ranks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the size of the group, which is an object for c10d and a name for the functional ones."""
    import torch.distributed as dist

    for value in reversed((*args, *kwargs.values())):
        if isinstance(value, str) and value:
            name: Any = value
            try:
                return int(torch._C._distributed_c10d._resolve_process_group(name).size())
            except (RuntimeError, ValueError, LookupError):
                continue
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return int(dist.ProcessGroup.unbox(value).size())
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _wire_bytes(kind: str, given: int, ranks: int) -> int:
    """Return what a rank sends around a ring of `ranks`."""
    match kind:
        case "all_reduce":
            return 2 * (ranks - 1) * given // ranks
        case "all_gather":
            return (ranks - 1) * given
        case "broadcast" | "other":
            return given
    return (ranks - 1) * given // ranks

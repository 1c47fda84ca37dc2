"""Run the minimal input of a fault and write down everything in which two runs can differ."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from day0.devices.faults._fault import Aspect, Fault
from day0.devices.sim.device import counters
from day0.devices.sim.tensor import raw
from day0.devices.sim.wrap import wrap
from day0.errors import USER_ERRORS, Day0Error
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import tensors_in
from day0.reference_ops.torch_ops import register_operators

__all__ = ["Observation", "differences", "lent_kernels", "observe"]


_ERRORS: tuple[type[BaseException], ...] = (*USER_ERRORS, Day0Error)


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What came out of one run."""

    values: tuple[Any, ...] = ()
    strides: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    """Shape and strides of every tensor."""
    dtypes: tuple[str, ...] = ()
    error: tuple[str, str] | None = None
    """Class of what was raised, and its first line."""
    counters: tuple[tuple[str, int], ...] = ()
    """Fallbacks by operator, and host syncs."""


def observe(fault: Fault, device: torch.device) -> Observation:
    """Run a fault's minimal input on a device. What is planted in this context is planted."""
    before = counters()
    fallbacks, syncs = dict(before.fallbacks), before.host_syncs
    try:
        result = fault.minimal.run(device)
    except _ERRORS as error:
        lines = str(error).strip().splitlines() or [""]
        return Observation(error=(type(error).__name__, lines[0]), counters=_counted(fallbacks, syncs))
    counted = _counted(fallbacks, syncs)
    tensors = list(tensors_in(result))
    return Observation(
        values=tuple(tensor.detach().cpu().clone() for tensor in tensors) or (result,),
        strides=tuple((tuple(tensor.shape), tuple(tensor.stride())) for tensor in tensors),
        dtypes=tuple(str(tensor.dtype) for tensor in tensors),
        counters=counted,
    )


def _counted(fallbacks: dict[str, int], syncs: int) -> tuple[tuple[str, int], ...]:
    now = counters()
    more = {name: count - fallbacks.get(name, 0) for name, count in now.fallbacks.items()}
    found = {name: count for name, count in more.items() if count} | {"host syncs": now.host_syncs - syncs}
    return tuple(sorted(found.items()))


def differences(one: Observation, other: Observation) -> frozenset[Aspect]:
    """Say in which aspects two observations differ; where one raised, in the error alone and in what was counted."""
    found: set[Aspect] = set()
    if one.error != other.error:
        found.add("error")
    elif one.strides != other.strides:
        found.add("strides")
    if "error" in found:
        # What was left undone is not counted, so that only what was done besides tells something.
        more = set(one.counters) - set(other.counters) - {("host syncs", 0)}
        return frozenset(found | ({"counters"} if more else set()))
    if one.counters != other.counters:
        found.add("counters")
    if one.dtypes != other.dtypes:
        found.add("dtypes")
    elif not _same_values(one.values, other.values):
        found.add("values")
    return frozenset(found)


def _same_values(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return len(some) == len(others) and all(_same(one, other) for one, other in zip(some, others, strict=True))


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    if one.shape != other.shape:
        return False
    wide = (torch.float32 if one.is_floating_point() and one.element_size() == 1 else one.dtype) or one.dtype
    return torch.equal(*(tensor.to(wide).nan_to_num(nan=12345.0) for tensor in (one, other)))


@contextmanager
def lent_kernels() -> Iterator[None]:
    """Give the simulated device a kernel of its own for each of our operators: the reference, while this lasts."""
    register_operators()
    library = torch.library.Library("day0", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for name, operator in load_operators().items():
            if name.startswith("day0::"):
                library.impl(name.partition("::")[2], _kernel(operator.reference), "PrivateUse1", allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def _kernel(reference: Any) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = reference(*raw(args), **{name: raw(value) for name, value in kwargs.items()})
        return wrap(result, (*args, *kwargs.values()))

    return kernel

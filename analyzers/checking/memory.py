"""Memory around a call: what a kernel gets unwritten holds poison, and behind each argument stands a guard.

On the host the C library does the first: with M_PERTURB glibc fills all memory that it hands out. It reaches kernels
written in C++ and the simulated device, which no mode of torch sees. Elsewhere freed blocks of the sizes that the
results will have are filled, for a caching allocator hands those out again.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.errors import USER_ERRORS

__all__ = ["FIRST", "SECOND", "Poison", "fill_freed", "guarded", "poison_of", "poisoned"]

GUARD_BYTES = 4096
"""A block of 1,024 float32 values: the size with which kernels run past an end."""

_M_PERTURB = -6

Poison = int
FIRST: Poison = 0xFE
"""Every byte of unwritten memory: -1.7e38 in float32 and bfloat16, NaN in float16, far below 0 in integers."""
SECOND: Poison = 0x62
"""Another one, to see whether a result depends on it."""

_NAN_BYTE, _INTEGER_BYTE = 0xFF, 0x7B
"""What guards are made of: NaN in every floating dtype; a large index in every integer dtype."""


@contextmanager
def poisoned(poison: Poison) -> Iterator[None]:
    """Let memory of the host that is allocated meanwhile begin as poison. Where libc is not glibc it changes nothing."""
    tune = _mallopt()
    if tune is None:
        yield
        return
    tune(_M_PERTURB, poison ^ 0xFF)  # glibc fills with the complement
    try:
        yield
    finally:
        tune(_M_PERTURB, 0)


@cache
def _mallopt() -> Callable[[int, int], int] | None:
    if platform.libc_ver()[0] != "glibc":
        return None
    found: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    return found


def poison_of(dtype: torch.dtype, poison: Poison) -> Any:
    """Return the value that fills unwritten memory of a dtype on a device: NaN or an extreme; then another."""
    first = poison == FIRST
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan") if first else 3.0
    if dtype == torch.bool:
        return first
    limits = torch.iinfo(dtype)
    return limits.max if first else limits.max // 3


def fill_freed(expected: Iterable[torch.Tensor], device: torch.device, poison: Poison) -> None:
    """Fill memory of the device in the sizes of the results and free it again."""
    if device.type in ("cpu", "sim"):
        return  # `poisoned` does it
    held = []
    for one in expected:
        try:
            held.append(torch.full(one.shape, poison_of(one.dtype, poison), dtype=one.dtype, device=device))
        except USER_ERRORS:
            continue  # no such dtype there, or no memory: the call will tell
    del held


def guarded(inputs: CaseInputs) -> CaseInputs:
    """Copy the arguments into memory with a guard behind it; strides, offsets and sharing stay as they are.

    A kernel that writes past an end changes the guard, and one that reads there gets NaN or an impossible index.
    """
    storages: dict[int, torch.UntypedStorage] = {}

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            own = value.untyped_storage()
            if own._cdata not in storages:
                storages[own._cdata] = _with_guard(value)
            made = torch.empty(0, dtype=value.dtype)
            return made.set_(storages[own._cdata], value.storage_offset(), value.shape, value.stride())
        if isinstance(value, (list, tuple)):
            return type(value)(move(item) for item in value)
        return {name: move(item) for name, item in value.items()} if isinstance(value, dict) else value

    return CaseInputs(args=move(inputs.args), kwargs=move(inputs.kwargs))


def _with_guard(tensor: torch.Tensor) -> torch.UntypedStorage:
    own = tensor.untyped_storage()
    size = own.nbytes()
    room = -size % 16  # so that rows of every dtype end where the storage does
    row = torch.empty(size + room + GUARD_BYTES, dtype=torch.uint8)
    row.narrow(0, 0, size).copy_(torch.empty(0, dtype=torch.uint8).set_(own))
    byte = _NAN_BYTE if tensor.is_floating_point() or tensor.is_complex() else _INTEGER_BYTE
    row.narrow(0, size, room + GUARD_BYTES).fill_(1 if tensor.dtype == torch.bool else byte)
    return row.untyped_storage()

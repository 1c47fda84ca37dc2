"""What goes on inside a kernel written in Python: unwritten memory, writes beside its buffers, trips to the CPU.

The kernel of a locked implementation is called by torch's dispatcher, below every mode, so the mode that watches is
entered within it: `watched` wraps what a lock's implementations run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from day0.analyzers.checking.board import SILENT, Teller
from day0.analyzers.checking.memory import FIRST, Poison, poison_of
from day0.errors import USER_ERRORS
from day0.implementation import Implementation
from day0.reference_ops.signatures import dtype_name, tensors_in
from day0.registry.dispatch import suspended

__all__ = ["Watch", "watched", "watching"]

_EMPTY = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_strided", "empty_like", "empty_permuted", "new_empty", "new_empty_strided")
)
_COPIES = frozenset(
    f"aten::{name}" for name in ("to", "_to_copy", "copy_", "_copy_from", "clone", "contiguous", "detach", "alias")
)
"""Without overload: within a kernel, composites such as `to` arrive whole."""

GUARD = 1024
"""Elements on either side of a buffer."""
MOST_FENCED = 64 << 20
"""Bytes of the buffers of one call that are kept to look at their surroundings."""


@dataclass(kw_only=True, slots=True)
class _Fence:
    """One buffer that a kernel asked for, within a larger one."""

    row: torch.Tensor
    last: int
    """Where the buffer ends; before and after it nobody may write."""


@dataclass(kw_only=True, slots=True)
class Watch:
    """What was seen within the kernels of one call."""

    device: torch.device
    poison: Poison = FIRST
    teller: Teller = SILENT
    fences: list[_Fence] = field(default_factory=list)
    fenced_bytes: int = 0
    away: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    """Memory on the CPU that came from the device, or was computed from what did."""
    computed: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    returned: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    """Memory on the device that came from such results."""
    away_bytes: int = 0
    operators: dict[str, None] = field(default_factory=dict)
    """What was computed on the CPU."""

    def went_to_cpu(self, results: Iterable[torch.Tensor]) -> str:
        """Say how a kernel computed on the CPU instead of the device, or return an empty text.

        Reading sizes or group offsets on the host is no fallback: what came back has to hold floating values, or to
        be the result itself.
        """
        if not self.away or not self.returned:
            return ""
        floats = any(self._floats.values())
        own = any(one.untyped_storage()._cdata in self.returned for one in results)
        if not floats and not own:
            return ""
        names = ", ".join(list(self.operators)[:3]) or "something that torch does not see"
        return (
            f"its kernel took {self.away_bytes:,} bytes to the CPU, computed {names} there and brought the result back"
        )

    _floats: dict[int, bool] = field(default_factory=dict)

    def written_beside(self) -> str:
        """Say what was written around the buffers that the kernel asked for, or return an empty text."""
        for fence in self.fences:
            value = poison_of(fence.row.dtype, self.poison)
            sides = ("before", fence.row[:GUARD]), ("after", fence.row[fence.last : fence.last + GUARD])
            for name, side in sides:
                count = int(_touched(side.cpu(), value).sum())
                if count:
                    what = f"{fence.last - GUARD} elements of {dtype_name(fence.row.dtype)}"
                    return f"{count} elements {name} a buffer of {what} were written"
        return ""

    def see(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Follow values to the CPU and back."""
        if self.device.type == "cpu":
            return
        outs = list(tensors_in(result))
        ins = list(tensors_in((args, kwargs)))
        if not any(one.is_cpu for one in (*outs, *ins)):
            return  # all of it is on the device, as nearly always
        there, here = (any(one.device.type == kind for one in ins) for kind in (self.device.type, "cpu"))
        for out in outs:
            key = out.untyped_storage()
            if out.device.type == "cpu" and there and out.numel() > 1:
                self.away[key._cdata] = key
                self.away_bytes += out.numel() * out.element_size()
            elif out.device.type == "cpu" and any(one.untyped_storage()._cdata in self.away for one in ins):
                self.away[key._cdata] = key
                if name not in _COPIES:
                    self.computed[key._cdata] = key
                    self.operators[name] = None
            elif out.device.type == self.device.type and here and name in _COPIES:
                self._came_back(ins, out)

    def _came_back(self, ins: list[torch.Tensor], out: torch.Tensor) -> None:
        sources = [one for one in ins if one.device.type == "cpu" and one.numel() > 1]
        if not sources or not self.away:
            return
        key = out.untyped_storage()
        self.returned[key._cdata] = key
        floats = out.is_floating_point() or out.is_complex()
        own = any(one.untyped_storage()._cdata in self.computed for one in sources)
        self._floats[key._cdata] = floats and own


def _touched(side: torch.Tensor, value: Any) -> torch.Tensor:
    """Return a mask of what is no poison any more; any NaN is poison still, for devices write it in bits of their own."""
    if side.is_complex():
        return ~torch.isnan(side) if value != value else side != value  # noqa: PLR0124 - NaN
    if side.is_floating_point():
        wide = side.float()
        return ~torch.isnan(wide) if value != value else wide != value  # noqa: PLR0124 - NaN
    changed: torch.Tensor = side != value
    return changed


class _Mode(TorchDispatchMode):
    """Sees every operator that a kernel calls, and fences the memory that it asks for."""

    supports_higher_order_operators = True

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.watch = watch

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let a kernel that torch.compile made run as it is: a mode would make it run without being compiled."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator."""
        kwargs = kwargs or {}
        name = func.name() if isinstance(func, torch._ops.OpOverload) else str(func)
        self.watch.teller.operator(name)
        result = func(*args, **kwargs)
        base = name.partition(".")[0]
        if base in _EMPTY and not kwargs.get("pin_memory") and kwargs.get("out") is None:
            result = _fenced(self.watch, result)
        self.watch.see(base, args, kwargs, result)
        return result


def _fenced(watch: Watch, asked: torch.Tensor) -> torch.Tensor:
    """Return a buffer of the same layout, filled with poison, with guards before and after it."""
    if asked.device.type != watch.device.type or asked.numel() == 0 or asked.layout != torch.strided:
        return asked
    extent = 1 + sum((size - 1) * step for size, step in zip(asked.shape, asked.stride(), strict=True))
    size = (extent + 2 * GUARD) * asked.element_size()
    with suspended():  # what fills must not be what is checked
        try:
            value = poison_of(asked.dtype, watch.poison)
            if watch.fenced_bytes + size > MOST_FENCED:
                return asked.fill_(value)
            row = torch.empty(extent + 2 * GUARD, dtype=asked.dtype, device=asked.device).fill_(value)
            made = row.as_strided(asked.shape, asked.stride(), GUARD)
        except USER_ERRORS:
            return asked  # a device that cannot fill this dtype
    watch.fenced_bytes += size
    watch.fences.append(_Fence(row=row, last=GUARD + extent))
    return made


_WATCH: ContextVar[Watch | None] = ContextVar("day0_watch", default=None)


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Let the kernels that `watched` has wrapped be watched in this context."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


def watched(implementations: Iterable[Implementation]) -> tuple[Implementation, ...]:
    """Return the implementations with kernels that can be watched; without `watching` they run as they are."""
    return tuple(replace(one, run=_wrapped(one.run)) for one in implementations)


def _wrapped(run: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        watch = _WATCH.get()
        if watch is None:
            return run(*args, **kwargs)
        with _Mode(watch):
            return run(*args, **kwargs)

    return call

"""What a strict device refuses while a module's forward runs: whatever makes the host wait there."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.nn.modules import module as torch_modules
from torch.utils.hooks import RemovableHandle

from day0.devices.leaves import MASKED, syncs
from day0.devices.sim.state import STATE

__all__ = ["refuse_in_forward", "refuse_wait_in_forward", "wait_for", "waits", "watch_forward"]

_READS = frozenset({"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"})
_READ_NUMBERS = frozenset({"aten::masked_fill_.Tensor", "aten::index_fill_.int_Tensor"})
"""Overloads that read the tensor that is to be filled in."""
_COUNTED = "aten::repeat_interleave.Tensor"
"""Its result is as long as the sum of what it is given, unless the call says how long."""
_WAYS_OUT = {
    "item": "a value is read back to the host, which has to wait for it; keep it on the device as a tensor of one "
    "element, or read it after the model",
    "nonzero": "the size of the result depends on values, so the host has to wait for it; use torch.where, a mask or "
    "a size that is known before",
    "to": "a tensor is copied between host and device, and a captured graph cannot do that; make it on the device, or "
    "move it before the model runs (register_buffer)",
}
_CALLS = {"item": ".item()", "nonzero": "nonzero", "to": ".to()"}


class _Stack(threading.local):
    """The modules whose forward runs in this thread, by class."""

    def __init__(self) -> None:
        self.names: list[str] = []


_RUNNING = _Stack()
_HANDLES: list[RemovableHandle] = []


def watch_forward(*, wanted: bool) -> None:
    """Begin or stop to note whether a forward runs. Hooks on all modules cost time, so only a strict profile has them."""
    while _HANDLES:
        _HANDLES.pop().remove()
    _RUNNING.names.clear()
    if wanted:
        _HANDLES.append(torch_modules.register_module_forward_pre_hook(_enter))
        _HANDLES.append(torch_modules.register_module_forward_hook(_leave, always_call=True))


def _enter(module: torch.nn.Module, args: Any) -> None:
    _RUNNING.names.append(type(module).__name__)


def _leave(module: torch.nn.Module, args: Any, output: Any) -> None:
    if _RUNNING.names:
        _RUNNING.names.pop()


def refuse_in_forward(kind: str) -> None:
    """Raise RuntimeError if the open profile refuses such a thing inside forward, and one runs."""
    if _RUNNING.names and kind in STATE.profile.forward_refuses:
        place = ".".join(_RUNNING.names[-3:])
        raise RuntimeError(
            f"{_CALLS[kind]} inside forward ({place}) on device '{STATE.profile.name}': {_WAYS_OUT[kind]}"
        )


def waits(name: str) -> bool:
    """Say whether there are calls of an overload for which the host waits: `wait_for` says for which."""
    base = name.partition(".")[0]
    return name in (*_READ_NUMBERS, _COUNTED) or base in _READS or base in MASKED or syncs(name)


def wait_for(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Say for what the host waits after a kernel: `item`, a value; `nonzero`, a size; or nothing."""
    base = name.partition(".")[0]
    if base in _READS or name in _READ_NUMBERS:
        return "item"
    counted = name == _COUNTED and kwargs.get("output_size") is None
    return "nonzero" if counted or syncs(name) or (base in MASKED and _has_mask(args)) else ""


def refuse_wait_in_forward(kind: str) -> None:
    """Refuse an operator whose value or size goes back to the host, as `.item()` or as `nonzero`."""
    if kind and _RUNNING.names:
        refuse_in_forward(kind)


def _has_mask(args: tuple[Any, ...]) -> bool:
    """Say whether an index is a mask of truth values: the number of its hits is then a size."""
    indices = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
    return any(isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8) for one in indices)

"""Which of several simulated devices: the current one of each thread, and indices that exist."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from day0.devices.sim.state import STATE

__all__ = ["check_index", "current_index", "index_of", "set_current_index"]


class _Current(threading.local):
    """The current device of a thread, as on other accelerators."""

    index = 0


_CURRENT = _Current()


def current_index() -> int:
    """Return the index that `sim` without an index means in this thread."""
    return _CURRENT.index


def set_current_index(index: int) -> None:
    """Make a device the current one of this thread. Raises RuntimeError if there is none with this index."""
    _CURRENT.index = check_index(index)
    standing = any(isinstance(mode, _Completed) for mode in _get_current_function_mode_stack())
    if bool(index) != standing:
        _stand_below_all_modes(_Completed() if index else None)


def index_of(device: object) -> int:
    """Return the index that `sim:1`, a torch.device, a number or None (the current device) means.

    Raises RuntimeError: no such index; ValueError: a device of another type.
    """
    if device is None:
        return _CURRENT.index
    if isinstance(device, int):
        return _CURRENT.index if device < 0 else check_index(device)
    asked = torch.device(device) if isinstance(device, str) else device
    if not isinstance(asked, torch.device) or asked.type != "sim":
        raise ValueError(f"Expected a sim device, but got: {device}")
    return _CURRENT.index if asked.index is None else check_index(asked.index)


def check_index(index: int) -> int:
    """Return an index that exists. Raises RuntimeError that says how many devices there are for another one."""
    count = STATE.profile.devices
    if not 0 <= index < count:
        there = "there is one device, sim:0" if count == 1 else f"there are {count} devices, sim:0 to sim:{count - 1}"
        raise RuntimeError(f"sim error: invalid device ordinal {index}; {there}")
    return index


class _Completed(TorchFunctionMode):
    """Gives `sim` without an index the current one, before torch completes it by itself.

    torch asks a guard in C++ for the current device, and for a backend written in Python that one always says 0.
    It stands only in threads that have left sim:0, and until they are back.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if _CURRENT.index and func is not torch.device:
            args = tuple(_completed(one) for one in args)
            named = {name: _completed(one) if name == "device" else one for name, one in named.items()}
        return func(*args, **named)


def _completed(value: Any) -> Any:
    bare = isinstance(value, torch.device) and value.type == "sim" and value.index is None
    return torch.device("sim", _CURRENT.index) if bare or (isinstance(value, str) and value == "sim") else value


def _stand_below_all_modes(mode: TorchFunctionMode | None) -> None:
    # As torch's own default device does: above another mode it would be taken away in that one's stead.
    above = [_pop_mode() for _ in _get_current_function_mode_stack()]
    if mode is not None:
        _push_mode(mode)
    for one in reversed(above):
        if not isinstance(one, _Completed):
            _push_mode(one)

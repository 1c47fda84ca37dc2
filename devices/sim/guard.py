"""Errors in backward on the simulated device: a kernel that refuses there must not end the process.

torch's engine puts a stream guard around each node, and leaves the guard while an error passes. For a backend written
in Python the guard then asks our code for the device's type, with the error still set in the interpreter, where no
Python function may be called; the process ends. So the error is taken away there, and given back at the end of the
backward pass.
"""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Any

import torch

__all__ = ["SimGuard", "taken_error"]

_acc: Any = torch._C._acc
_autograd: Any = torch._C._autograd

_TAKEN: deque[BaseException] = deque(maxlen=8)
"""Errors on their way; few, since each of them keeps the tensors of its frames."""

_raise_pending = ctypes.pythonapi.PyErr_Occurred
"""Any function called in this way raises the error that is set in the interpreter, if there is one."""
_raise_pending.restype = None


class SimGuard(_acc.DeviceGuard):  # type: ignore[misc]  # torch's stub has no such class
    """Tells torch's guards what device they guard."""

    def type_(self) -> Any:
        """Return the type of the device, also while an error passes."""
        try:
            _raise_pending()
        except BaseException as error:  # noqa: BLE001 - it is given back, whatever it is: see taken_error
            _TAKEN.append(error)
        return _autograd.DeviceType.PrivateUse1


def taken_error() -> BaseException | None:
    """Return the last error that was taken from a backward pass, or None; it is returned once."""
    return _TAKEN.pop() if _TAKEN else None

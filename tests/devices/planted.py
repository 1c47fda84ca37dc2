"""Kernels that crash, abort, hang, lie and break their device, for the worker that probes. Imported there only."""

import os
import signal
import time
from typing import Any

import torch

LIBRARY = torch.library.Library("aten", "IMPL")


def _segfault(self: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGSEGV)
    return self


def _abort(self: torch.Tensor) -> torch.Tensor:
    os.write(2, b"terminate called: planted abort\n")
    os.abort()


def _hang(self: torch.Tensor) -> torch.Tensor:
    time.sleep(3600)
    return self


def _lie(self: torch.Tensor) -> torch.Tensor:
    return self.clone() * 2


def _wrong_shape(self: torch.Tensor) -> torch.Tensor:
    return self.clone().flatten()


def _exits(self: torch.Tensor) -> torch.Tensor:
    os._exit(7)


def _back_to_front(
    self: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    ordered = torch.sort(self, dim=dim, descending=largest)
    values, indices = ordered.values.narrow(dim, 0, k), ordered.indices.narrow(dim, 0, k)
    return values.flip(dim), indices.flip(dim)


KERNELS: dict[str, Any] = {
    "tanh": _segfault,
    "sin": _abort,
    "cos": _hang,
    "exp": _lie,
    "erf": _wrong_shape,
    "sinh": _exits,
    "topk": _back_to_front,
}
for _name, _kernel in KERNELS.items():
    LIBRARY.impl(_name, _kernel, "PrivateUse1")

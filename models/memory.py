"""Whether something fits into this machine, asked before it is allocated."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from day0.errors import Day0Error

__all__ = ["has_values", "module_bytes", "refuse_too_large"]


def has_values() -> bool:
    """Say whether tensors that are made now have memory and values; not while a trace goes without them."""
    return torch.empty(1).device.type != "meta"


def module_bytes(module: nn.Module) -> int:
    """Return the bytes of all parameters and buffers; a module on meta has them too."""
    return sum(value.numel() * value.element_size() for value in (*module.parameters(), *module.buffers()))


def refuse_too_large(needed: int, where: str) -> None:
    """Raise Day0Error where fewer bytes than needed are free. Says nothing where the system does not tell."""
    free = _free_bytes()
    if free is not None and needed > free:
        what = f"its weights take {needed / 2**30:,.1f} GiB, and this machine has {free / 2**30:,.1f} GiB free"
        raise Day0Error(where, what, hint="--mode meta needs no memory; or make the model smaller with --set")


def _free_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)

"""Pinned host memory. torch asks the accelerator's backend for it, and one written in Python has no allocator to give."""

from __future__ import annotations

import warnings
import weakref

import torch

__all__ = ["register_pinning"]

_PINNED: set[int] = set()
"""Storages that are pinned."""


def register_pinning() -> torch.library.Library:
    """Let `pin_memory` copy a host tensor into memory that `is_pinned` then knows."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        library.impl("_pin_memory", _pin, "CPU")
        library.impl("is_pinned", _is_pinned, "CPU")
    return library


def _pin(self: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    pinned = self.clone()
    storage = pinned.untyped_storage()
    key = storage._cdata
    _PINNED.add(key)
    weakref.finalize(storage, _PINNED.discard, key).atexit = False
    return pinned


def _is_pinned(self: torch.Tensor, device: torch.device | None = None) -> bool:
    return bool(_PINNED) and self.untyped_storage()._cdata in _PINNED

"""What is held at one moment: pages, caches, slots of experts, memory of host and device."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import nn

from day0.analyzers.resident import peak_resident, resident
from day0.converters.online.expert_cache import ExpertCache
from day0.devices.open import memory_allocated, synchronize

__all__ = ["Held", "Memory", "expert_caches", "experts_held", "memory_now"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What an engine holds."""

    blocks: int = 0
    """Pages that a sequence owns; 0 for an engine without pages."""
    pool_blocks: int = 0
    sequences: int = 0
    caches: int = 0
    """Batches that are alive, whoever keeps them so."""
    wasted_share: float = 0.0
    """Slots in owned pages that hold no token."""
    scattered_share: float = 0.0
    """1 - longest run of free pages over all free pages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes in use."""

    host: int
    device: int


def memory_now(device: torch.device) -> Memory:
    """Return the resident memory of this process and what is allocated on the device; 0 where nobody counts."""
    synchronize(device)
    host = resident(os.getpid()) or peak_resident()  # where nobody says: the most it ever was
    return Memory(host=host, device=memory_allocated(device))


def expert_caches(model: nn.Module) -> tuple[ExpertCache, ...]:
    """Return the expert caches that modules of a model use."""
    found: dict[int, ExpertCache] = {}
    for module in model.modules():
        for value in vars(module).values():
            cache = value if isinstance(value, ExpertCache) else getattr(value, "cache", None)
            if isinstance(cache, ExpertCache):
                found[id(cache)] = cache
    return tuple(found.values())


def experts_held(caches: tuple[ExpertCache, ...]) -> int:
    """Return how many slots some step holds, and has to be none between steps."""
    return sum(cache.table.held() for cache in caches)

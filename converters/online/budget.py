"""How many slots fit, with a margin; and what to say where they are too few to help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from day0.errors import Day0Error

__all__ = ["MARGIN", "Budget", "available_bytes", "plan_slots"]

MARGIN = 0.2
"""Share of the available memory that is left alone: activations grow, and an allocator keeps what it was given."""
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How many slots a cache gets."""

    slots: int
    """Kept ones, of all layers together."""
    scratch: int
    slot_bytes: int
    note: str = ""
    """Why the cache will keep little; empty where it is large enough."""

    @property
    def nbytes(self) -> int:
        """Of the whole workspace."""
        return (self.slots + self.scratch) * self.slot_bytes


def available_bytes(device: torch.device | str = "cpu") -> int | None:
    """Return the bytes that are free on a device, or in this process's share of the host; None where nobody tells."""
    device = torch.device(device)
    if device.type not in ("cpu", "meta"):
        module = getattr(torch, device.type, None)
        told = getattr(module, "mem_get_info", None)
        return int(told(device)[0]) if told is not None else None
    found = [one for one in (_host_free(), _group_free()) if one is not None]
    return min(found, default=None)


def _host_free() -> int | None:
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _group_free() -> int | None:
    limit, used = _read(_CGROUP / "memory.max").strip(), _read(_CGROUP / "memory.current").strip()
    return int(limit) - int(used) if limit.isdecimal() and used.isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def plan_slots(
    *, layers: int, experts: int, per_step: int, slot_bytes: int, available: int | None, margin: float = MARGIN
) -> Budget:
    """Return as many slots as fit into the available memory less the margin, and not more than there are experts.

    `per_step` is how many experts a layer needs in one step; so many scratch slots are wanted, and one is the least.
    Without a figure for the memory only scratch is planned. Raises Day0Error where not even one slot fits.
    """
    if not 0 <= margin < 1:
        raise Day0Error("margin", f"expected a share from 0 to below 1, got {margin}", hint="0.2 leaves a fifth free")
    per_step = max(1, min(per_step, experts))
    fit = per_step if available is None else int(available * (1 - margin)) // slot_bytes
    if fit < 1:
        what = f"a slot takes {slot_bytes:,} bytes, and {available:,} less {margin:.0%} are available"
        raise Day0Error("expert cache", what, hint="free memory, or take a smaller margin")
    scratch = min(per_step, fit)
    slots = min(fit - scratch, layers * experts)
    return Budget(slots=slots, scratch=scratch, slot_bytes=slot_bytes, note=_note(slots, layers, per_step))


def _note(slots: int, layers: int, per_step: int) -> str:
    need = layers * per_step
    if slots >= need:
        return ""
    return (
        f"{slots:,} slots keep less than the {need:,} experts that one step of {layers:,} layers needs: "
        "the hit rate will be low, and a pool shared by all layers would have none at all"
    )

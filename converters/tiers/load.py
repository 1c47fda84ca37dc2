"""The tiers by name."""

from __future__ import annotations

from day0.converters.tiers import compiled, eager, native, triton
from day0.converters.tiers._tier import Tier
from day0.errors import Day0Error, near_names

__all__ = ["AUTO", "load_tiers", "pick_tier"]

AUTO = "auto"


def load_tiers() -> dict[str, Tier]:
    """Return all tiers."""
    return {one.name: one for one in (eager.TIER, compiled.TIER, native.TIER, triton.TIER)}


def pick_tier(name: str, device: str = "cpu") -> Tier:
    """Return a tier for tensors on a type of device; `auto` is the fastest that works there.

    Raises Day0Error for an unknown name, and for a tier that this machine or device lacks something for.
    """
    tiers = load_tiers()
    if name == AUTO:
        return _fastest(device)
    if name not in tiers:
        names = (AUTO, *tiers)
        raise Day0Error(f"--tier {name}", "there is no such tier", hint=near_names(name, names) or ", ".join(names))
    if missing := tiers[name].missing(device):
        raise Day0Error(f"--tier {name}", missing, hint="use --tier eager")
    return tiers[name]


def _fastest(device: str) -> Tier:
    if not native.TIER.missing(device) and _builds():
        return native.TIER
    return eager.TIER if triton.TIER.missing(device) else triton.TIER


def _builds() -> bool:
    try:
        native._library()
    except (Day0Error, OSError):
        return False
    return True

"""The tiers by name."""

from __future__ import annotations

from day0.converters.tiers import compiled, eager, native
from day0.converters.tiers._tier import Tier
from day0.errors import Day0Error, near_names

__all__ = ["AUTO", "load_tiers", "pick_tier"]

AUTO = "auto"


def load_tiers() -> dict[str, Tier]:
    """Return all tiers."""
    return {one.name: one for one in (eager.TIER, compiled.TIER, native.TIER)}


def pick_tier(name: str, device: str = "cpu") -> Tier:
    """Return a tier for tensors of a device type; `auto` is native where it can be built, else eager.

    Raises Day0Error for an unknown name, and for a tier that this machine or device lacks something for.
    """
    tiers = load_tiers()
    if name == AUTO:
        return native.TIER if not native.TIER.missing(device) and _builds() else eager.TIER
    if name not in tiers:
        names = (AUTO, *tiers)
        raise Day0Error(f"--tier {name}", "there is no such tier", hint=near_names(name, names) or ", ".join(names))
    if missing := tiers[name].missing(device):
        raise Day0Error(f"--tier {name}", missing, hint="use --tier eager")
    return tiers[name]


def _builds() -> bool:
    try:
        native._library()
    except (Day0Error, OSError):
        return False
    return True

"""What a selftest is asked for: which faults, on which device."""

from __future__ import annotations

from collections.abc import Sequence

from day0.devices.faults._fault import Fault
from day0.devices.faults.load import load_faults
from day0.devices.profile import DeviceProfile
from day0.errors import Day0Error, near_names

__all__ = ["refuse_device", "select_faults"]


def select_faults(only: Sequence[str]) -> tuple[Fault, ...]:
    """Return the planted faults of some names or families, or all. Raises Day0Error for a name that is neither."""
    faults = load_faults()
    families = {one.family for one in faults.values()}
    for name in only:
        if name not in faults and name not in families:
            hint = near_names(name, (*faults, *families)) or "`day0 device faults` lists them with their families"
            raise Day0Error(f"--only {name}", "there is no planted fault or family of that name", hint=hint)
    return tuple(one for one in faults.values() if not only or one.name in only or one.family in only)


def refuse_device(profile: DeviceProfile) -> None:
    """Raise Day0Error for a device that is not simulated: faults are planted there only."""
    if profile.torch_device != "sim":
        raise Day0Error(
            f"device {profile.name}",
            f"faults are planted on the simulated device, and this is torch's '{profile.torch_device}'",
            hint="take --device sim, or a profile of your own with `torch_device: sim`",
        )

"""The simulated device with a profile of the test's choice."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from day0.devices.profile import DeviceProfile, Lack, load_profile
from day0.devices.sim.device import open_sim

OpenWith = Callable[..., DeviceProfile]


@pytest.fixture
def null() -> Iterator[torch.device]:
    """Return the device with nothing missing."""
    yield open_sim(load_profile("null"))
    open_sim(load_profile("null"))


@pytest.fixture
def open_with() -> Iterator[OpenWith]:
    """Return a function that opens the null profile with changes: `lacks` as dicts, other fields as they are."""

    def open_changed(lacks: dict[str, dict[str, Any]] | None = None, **fields: Any) -> DeviceProfile:
        if lacks is not None:
            fields["lacks"] = {name: Lack(**{"reason": "the test says so", **lack}) for name, lack in lacks.items()}
        profile = load_profile("null").model_copy(update=fields)
        open_sim(profile)
        return profile

    yield open_changed
    open_sim(load_profile("null"))

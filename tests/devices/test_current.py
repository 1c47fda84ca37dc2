"""Which card of several a kernel is launched on, on two simulated ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from day0.devices.current import on_its_device


@on_its_device
def current(*args: object, **kwargs: object) -> int:
    """Return the number of the current card."""
    return _current()


def _current() -> int:
    sim: Any = torch.sim  # type: ignore[attr-defined]  # registered while running
    return int(sim.current_device())


@pytest.fixture(autouse=True)
def _two(open_with: Callable[..., Any]) -> None:
    open_with(devices=2)


def test_the_first_tensor_says_which_and_afterwards_all_is_as_it_was() -> None:
    there = torch.empty(2, device="sim:1")
    assert _current() == 0
    assert current(3, there) == 1
    assert current(x=there) == 1
    assert current(torch.empty(2)) == 0
    assert current(2.0) == 0
    assert _current() == 0


def test_what_raises_leaves_the_current_one_as_it_was() -> None:
    @on_its_device
    def fails(x: torch.Tensor) -> None:
        raise ValueError(x.get_device())

    with pytest.raises(ValueError, match="1"):
        fails(torch.empty(2, device="sim:1"))
    assert _current() == 0

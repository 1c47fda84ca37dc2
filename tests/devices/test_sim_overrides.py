"""Kernels that somebody else registers over the device's own: they run, and are gone when they are taken back."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from day0.devices.sim import dispatch
from day0.devices.sim.device import native_kernel

OpenWith = Callable[..., object]
pytestmark = pytest.mark.usefixtures("null")


def _override(name: str, kernel: Callable[..., Any]) -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns of every override
        library.impl(name, kernel, "PrivateUse1", allow_override=True)
    return library


@pytest.fixture
def x() -> Iterator[torch.Tensor]:
    yield torch.arange(4.0, device="sim")


def test_override_runs_and_the_native_kernel_comes_back(x: torch.Tensor) -> None:
    """torch itself would go on calling the override: with tensor subclasses it calls what was registered last."""
    for number in (5.0, 6.0):
        library = _override("neg", lambda self, number=number: torch.full_like(self, number))
        assert (-x).tolist() == [number] * 4
        library._destroy()
        assert (-x).tolist() == [0.0, -1.0, -2.0, -3.0]


def test_one_of_two_overrides_stays_when_the_other_is_taken_back(x: torch.Tensor) -> None:
    first = _override("neg", lambda self: torch.full_like(self, 5.0))
    second = _override("neg", lambda self: torch.full_like(self, 6.0))
    assert (-x).tolist() == [6.0] * 4
    first._destroy()
    assert (-x).tolist() == [6.0] * 4
    second._destroy()
    assert (-x).tolist() == [0.0, -1.0, -2.0, -3.0]


def test_calls_ask_torch_once_which_kernel_it_would_take(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question keeps some bytes until the process ends: a soak would take it for a leak of the model."""
    asked: list[str] = []

    def ask(name: str, key: torch._C.DispatchKey) -> object:
        asked.append(name)
        return torch._C._dispatch_get_computed_kernel_for_dispatch_key(name, key)

    monkeypatch.setattr(dispatch, "_COMPUTED", ask)
    for _ in range(3):
        torch.atan2(x, x)
    assert len(asked) <= 1
    library = _override("atan2", lambda self, other: torch.full_like(self, 5.0))
    for _ in range(3):
        assert torch.atan2(x, x).tolist() == [5.0] * 4
    assert asked.count("aten::atan2") <= 1
    library._destroy()


def test_override_of_a_missing_operator_leaves_it_missing_again(open_with: OpenWith) -> None:
    open_with(lacks={"aten::neg": {}})
    x = torch.ones(2, device="sim")
    library = _override("neg", lambda self: self * -1)
    assert (-x).tolist() == [-1.0, -1.0]
    library._destroy()
    with pytest.raises(NotImplementedError, match="Could not run"):
        torch.neg(x)


def test_override_may_call_the_kernel_below(x: torch.Tensor) -> None:
    below = native_kernel("aten::neg")
    assert below is not None
    library = _override("neg", lambda self: below(self) + 1)
    assert (-x).tolist() == [1.0, 0.0, -1.0, -2.0]
    library._destroy()


def test_override_receives_the_devices_tensors(x: torch.Tensor) -> None:
    seen: list[object] = []

    def negate(self: torch.Tensor) -> torch.Tensor:
        seen.append(self.device.type)
        return self * -1

    library = _override("neg", negate)
    torch.neg(x)
    library._destroy()
    assert seen == ["sim"]


def test_override_is_seen_below_composites(x: torch.Tensor) -> None:
    library = _override("native_layer_norm", lambda self, *rest: (self + 1, self, self))
    assert torch.nn.functional.layer_norm(x, [4]).tolist() == [1.0, 2.0, 3.0, 4.0]
    library._destroy()
    assert torch.nn.functional.layer_norm(x, [4]).mean().abs().item() < 1e-6


def test_missing_operator_has_no_native_kernel(open_with: OpenWith) -> None:
    open_with(lacks={"aten::neg": {}})
    assert native_kernel("aten::neg") is None
    assert native_kernel("aten::exp") is not None

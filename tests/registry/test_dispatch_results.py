"""An implementation that returns something else than its operator's contract says is refused when it does so."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from day0.devices.open import open_torch_device
from day0.devices.profile import load_profile
from day0.errors import Day0Error
from day0.reference_ops.torch_ops import register_operators
from day0.registry import routers
from day0.registry.dispatch import activate
from day0.registry.results import WrongResult
from tests.registry.locking import implementation, lock_of

CPU = torch.device("cpu")
X_RD = torch.linspace(-1, 1, 12).reshape(3, 4)

WRONG: dict[str, tuple[str, Callable[..., Any], str, str]] = {
    "shape": ("aten::erfinv", lambda x: x[:-1].clone(), r"float32\[2, 4\]", r"float32\[3, 4\]"),
    "dtype": ("aten::erfinv", lambda x: x.double(), r"float64\[3, 4\]", r"float32\[3, 4\]"),
    "device": ("aten::erfinv", lambda x: x.to("meta"), "on meta", "on cpu"),
    "one more": ("aten::erfinv", lambda x: (x.clone(), x.clone()), r"\[3, 4\] on cpu, float32", r"float32\[3, 4\]"),
    "none": ("aten::erfinv", lambda x: None, "nothing", r"float32\[3, 4\]"),
    "not a tensor": ("aten::erfinv", lambda x: 1.0, "float", r"float32\[3, 4\]"),
    "shape of ours": ("day0::hadamard", lambda x: x[:-1].clone(), r"float32\[2, 4\]", r"float32\[3, 4\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_is_refused_by_name(name: str) -> None:
    register_operators()
    operator, run, got, expected = WRONG[name]
    one = implementation(operator, run, id="wrong")
    call = torch.erfinv if operator == "aten::erfinv" else torch.ops.day0.hadamard
    with activate(lock_of((one, ("float32",))), CPU, [one]) as active:
        with pytest.raises(WrongResult) as caught:
            call(X_RD)
        assert active.receipts()[0].calls == 0, "a refused call is none that ran"
    error = caught.value
    assert isinstance(error, Day0Error) and error.where == f"{operator}: {one.identity}"
    returned, _, said = error.what.partition(", and the contract says ")
    assert re.search(got, returned), error.what
    assert re.search(expected, said), error.what
    assert error.facts == ("it came from tests/wrong.py:1", "called with float32[3, 4]")
    assert error.hint


def test_the_shapes_that_a_call_has_not_had_before_are_checked_too() -> None:
    one = implementation("aten::erfinv", lambda x: x.clone() if x.dim() == 2 else x[0].clone())
    with activate(lock_of((one, ("float32",))), CPU, [one]) as active:
        torch.erfinv(X_RD)
        torch.erfinv(X_RD)
        with pytest.raises(WrongResult, match=r"it returned float32\[4, 1\] on cpu, and"):
            torch.erfinv(X_RD.reshape(3, 4, 1))
        assert active.receipts()[0].calls == 2


def test_after_many_calls_one_of_some_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routers, "CHECKED_CALLS", 4)
    monkeypatch.setattr(routers, "CHECKED_EACH", 8)
    wrong: list[bool] = []
    one = implementation("aten::erfinv", lambda x: x[:-1].clone() if wrong else x.clone())
    with activate(lock_of((one, ("float32",))), CPU, [one]):
        for _ in range(20):
            torch.erfinv(X_RD)
        wrong.append(True)
        with pytest.raises(WrongResult):
            for _ in range(8):
                torch.erfinv(X_RD)


def test_operators_that_write_and_those_whose_sizes_depend_on_values_are_left_to_the_numerics() -> None:
    write = implementation("aten::add_.Tensor", lambda x, y, **_: x.copy_(x + y))
    find = implementation("aten::nonzero", lambda x: torch.zeros(1, 1, dtype=torch.int64))
    x_N = torch.ones(3)
    with activate(lock_of((write, ("float32", "float32"))), CPU, [write]) as active:
        assert x_N.add_(torch.ones(3)).tolist() == [2, 2, 2]
        assert active.receipts()[0].calls == 1
    with activate(lock_of((find, ("float32",))), CPU, [find]):
        assert torch.nonzero(x_N).shape == (1, 1)


def test_an_exception_of_an_implementation_goes_to_the_caller_and_the_call_goes_nowhere_else() -> None:
    class Broken(RuntimeError):
        pass

    def run(x: torch.Tensor) -> torch.Tensor:
        raise Broken("no")

    one = implementation("aten::erfinv", run)
    with activate(lock_of((one, ("float32",))), CPU, [one]) as active:
        for _ in range(3):
            with pytest.raises(Broken, match=r"^no$"):
                torch.erfinv(X_RD)
        assert active.receipts()[0].calls == 0
        assert not torch.erfinv(X_RD.double()).isnan().all()


def test_on_the_simulated_device_the_place_of_a_result_counts() -> None:
    device = open_torch_device(load_profile("sim"))
    one = implementation("aten::silu", lambda x: x.cpu() * torch.sigmoid(x.cpu()))
    with (
        activate(lock_of((one, ("float32",)), device="sim"), device, [one]),
        pytest.raises(WrongResult, match=r"float32\[3, 4\] on cpu, and the contract says float32\[3, 4\] on sim:0"),
    ):
        torch.nn.functional.silu(X_RD.to(device))

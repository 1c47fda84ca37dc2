"""Calls by module: hooks that follow a model while somebody asks, and leave nothing behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from day0.registry.dispatch import activate
from tests.registry.locking import implementation, lock_of

CPU = torch.device("cpu")
X_RD = torch.linspace(-1, 1, 8).reshape(2, 4)
ONE = implementation("aten::silu", lambda x: x * torch.sigmoid(x))
LOCK = lock_of((ONE, ("float32",)))


class Twice(nn.Module):
    """A module that calls the operator itself, below and after a part that does."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.SiLU())

    def forward(self, x_RD: torch.Tensor) -> torch.Tensor:
        """Two calls, one of them in the part."""
        return nn.functional.silu(self.part(x_RD))


def test_calls_are_counted_at_the_innermost_module_while_a_model_is_watched() -> None:
    model = nn.ModuleDict({"a": Twice(), "b": nn.SiLU()})
    with activate(LOCK, CPU, [ONE]) as active:
        model["a"](X_RD)
        with active.watching(model):
            active.watch(model)  # again does nothing
            model["a"](X_RD)
            model["b"](X_RD)
            nn.functional.silu(X_RD)
        model["b"](X_RD)
        receipt = active.receipts()[0]
    assert receipt.where == {"(outside)": 1, "a": 1, "a.part.0": 1, "b": 1}
    assert receipt.calls == 7


def test_a_forward_that_raises_leaves_no_module_behind() -> None:
    class Broken(nn.Module):
        def forward(self, x_RD: torch.Tensor) -> torch.Tensor:
            raise ValueError("planted")

    model = nn.ModuleDict({"bad": nn.Sequential(Broken()), "good": nn.SiLU()})
    with activate(LOCK, CPU, [ONE]) as active:
        active.watch(model)
        with pytest.raises(ValueError, match="planted"):
            model["bad"](X_RD)
        nn.functional.silu(X_RD)
        model["good"](X_RD)
        assert active.receipts()[0].where == {"(outside)": 1, "good": 1}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_every_call_is_placed_also_after_those_that_are_not_looked_at_closely() -> None:
    model = nn.SiLU()
    with activate(LOCK, CPU, [ONE]) as active:
        for _ in range(1100):
            nn.functional.silu(X_RD)
        active.watch(model)
        for _ in range(5):
            model(X_RD)
        assert active.receipts()[0].where == {"(model)": 5}

"""Recurrent networks on the simulated device follow the CPU, forward and backward."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("null")

MODULES: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True),
    "lstm_projected": lambda: nn.LSTM(4, 3, proj_size=2, bias=False),
    "gru": lambda: nn.GRU(4, 3, num_layers=2),
    "gru_without_bias": lambda: nn.GRU(4, 3, bias=False, batch_first=True),
    "rnn": lambda: nn.RNN(4, 3),
}


def _results(make: Callable[[], nn.Module], device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    module, x = make(), torch.randn(2, 5, 4)
    module, x = module.to(device), x.to(device).requires_grad_()
    output, state = module(x)
    states = state if isinstance(state, tuple) else (state,)
    sum(one.pow(2).sum() for one in (output, *states)).backward()
    grads = [one.grad for one in (x, *module.parameters())]
    return [one.detach().cpu() for one in (output, *states, *grads) if one is not None]


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # the CPU says so
@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_recurrent_module_follows_the_cpu(make: Callable[[], nn.Module]) -> None:
    ours, theirs = _results(make, "sim"), _results(make, "cpu")
    assert len(ours) == len(theirs) > 3
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)

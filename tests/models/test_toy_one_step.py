"""One training step of the toy: the same gradients with activation checkpointing, in less memory of `sim`."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator

import pytest
import torch

from day0.devices.profile import load_profile
from day0.devices.sim.device import open_sim
from day0.models.own import Inputs
from day0.models.toy.one_step import TrainingStep, training_step


@pytest.fixture
def sim() -> Iterator[torch.device]:
    yield open_sim(load_profile("null"))
    open_sim(load_profile("null"))


def made(*, checkpointing: bool) -> tuple[TrainingStep, torch.Tensor]:
    own = training_step(checkpointing=checkpointing, tokens=25)
    given = own.inputs["training"]
    assert isinstance(own.module, TrainingStep) and isinstance(given, Inputs)
    return own.module, given.args[0]


def test_checkpointing_changes_no_gradient_and_takes_less_memory(sim: torch.device) -> None:
    rows, peaks = [], []
    for checkpointing in (False, True):
        step, ids_BS = made(checkpointing=checkpointing)
        step = step.to(sim)
        gc.collect()
        torch.sim.reset_peak_memory_stats()  # type: ignore[attr-defined]  # the device's own module
        before = torch.sim.memory_allocated()  # type: ignore[attr-defined]  # the device's own module
        loss, gradients = step(ids_BS.to(sim))
        peaks.append(torch.sim.max_memory_allocated() - before)  # type: ignore[attr-defined]  # the device's own module
        rows.append(torch.cat((loss.cpu().reshape(1), gradients.cpu())))
        del step, loss, gradients
    assert torch.equal(*rows)
    assert float(rows[0].abs().sum()) > 1.0
    assert peaks[1] < 0.8 * peaks[0]


def test_a_step_can_be_copied_and_repeated() -> None:
    step, ids_BS = made(checkpointing=False)
    first = step(ids_BS)[1]
    assert torch.equal(copy.deepcopy(step)(ids_BS)[1], first)
    assert not first.requires_grad

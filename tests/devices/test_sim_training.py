"""Training the toy on `sim` follows the CPU: the same losses, step by step, and the same weights after it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import nn

from day0.devices.sim.device import counters
from day0.models.toy import tasks
from day0.models.toy.config import ToyConfig
from day0.models.toy.layers import Experts
from day0.models.toy.model import ToyModel
from day0.models.toy.tasks import IGNORED, Questions
from day0.models.toy.training import RoundedExperts, TrainingCalls, first_weights

RELATIVE = 2e-6
"""Of a loss. Every step feeds the rounding of the one before into Adam's quotients."""


@dataclass(frozen=True)
class Trained:
    """What training gave."""

    losses: list[float]
    weights: dict[str, torch.Tensor]


def train(device: str, steps: int) -> Trained:
    """Train from the same first weights on the same questions."""
    generator, calls = torch.Generator().manual_seed(1), TrainingCalls()
    model = ToyModel(ToyConfig(), calls)
    first_weights(model, generator)
    experts = RoundedExperts(model, generator)
    for module in model.modules():
        if isinstance(module, Experts):
            module.workspace = experts
    model.to(device)
    experts.weights = {name: nn.Parameter(value.detach().to(device)) for name, value in experts.weights.items()}
    optimiser = torch.optim.AdamW([*model.parameters(), *experts.weights.values()], lr=3e-3, weight_decay=0.01)
    losses = []
    for number in range(steps):
        # Dense and plain at first, then the indexer's choice alone, then rounded experts: as real training goes.
        calls.sparse, experts.rounded = number > steps // 3, number > steps // 2
        losses.append(learn(model, calls, optimiser, [moved(one, device) for one in lesson(generator)]))
    weights = {**dict(model.named_parameters()), **experts.weights}
    return Trained(losses=losses, weights={name: value.detach().cpu() for name, value in weights.items()})


def lesson(generator: torch.Generator) -> tuple[Questions, ...]:
    """Return a few questions, some with images."""
    return (
        tasks.recall_questions(4, 4, 8, generator, plain=True),
        tasks.copy_questions(2, 4, generator),
        tasks.image_questions(3, ToyConfig().vision_patch, generator),
    )


def moved(questions: Questions, device: str) -> Questions:
    """Return the questions on the device."""
    pixels = None if questions.pixels is None else questions.pixels.to(device)
    return replace(
        questions, ids_BS=questions.ids_BS.to(device), answer_BS=questions.answer_BS.to(device), pixels=pixels
    )


def learn(model: ToyModel, calls: TrainingCalls, optimiser: torch.optim.Optimizer, lesson: list[Questions]) -> float:
    """Take one step; return the loss before it."""
    optimiser.zero_grad()
    calls.index_losses.clear()
    losses = []
    for questions in lesson:
        logits_BSV = model(input_ids=questions.ids_BS, use_cache=False, pixel_values=questions.pixels).logits
        asked = questions.answer_BS != IGNORED
        losses.append(nn.functional.cross_entropy(logits_BSV[asked], questions.answer_BS[asked]))
    loss = torch.stack(losses).sum() + 0.1 * torch.stack(calls.index_losses).mean()
    loss.backward()
    nn.utils.clip_grad_norm_([value for group in optimiser.param_groups for value in group["params"]], 1.0)
    optimiser.step()
    return loss.item()


def compare(steps: int) -> None:
    """Train on both devices and compare."""
    expected, got = train("cpu", steps), train("sim", steps)
    assert got.losses == pytest.approx(expected.losses, rel=RELATIVE)
    assert len(set(expected.losses)) == steps, "a loss that stays the same would show nothing"
    for name, value in expected.weights.items():
        torch.testing.assert_close(got.weights[name], value, rtol=1e-4, atol=1e-5, msg=partial("{}: {}".format, name))
    assert not counters().fallbacks
    assert counters().calls["aten::mm"] > 100


@pytest.mark.usefixtures("null")
def test_two_steps_follow_the_cpu() -> None:
    compare(2)


@pytest.mark.slow
@pytest.mark.usefixtures("null")
def test_ten_steps_follow_the_cpu() -> None:
    compare(10)

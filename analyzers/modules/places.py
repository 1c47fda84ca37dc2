"""The three places where a model runs: on the device, on the CPU in its own dtype, and on the CPU in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from day0.analyzers.golden import Float64Mode
from day0.analyzers.modules.choices import Choice, Choices, Place
from day0.analyzers.modules.passes import Pass, walk
from day0.analyzers.modules.record import Recording, record_pass
from day0.models.spec import ModelSpec
from day0.registry.dispatch import suspended

__all__ = [
    "CPU",
    "Logits",
    "Models",
    "Three",
    "all_three",
    "build_models",
    "followed",
    "in_float64",
    "in_own_dtype",
    "on_device",
    "run_three",
]

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Models:
    """The same weights three times."""

    golden: nn.Module
    """On the CPU in float64, with the model's own code."""
    same: nn.Module
    """On the CPU in its own dtype, with its own code: the yardstick."""
    device: nn.Module
    where: torch.device


@dataclass(frozen=True, kw_only=True, slots=True)
class Three:
    """One pass on all three, with its choices."""

    golden: Recording
    same: Recording
    device: Recording
    choices: Choices
    """The device's, held against the golden's."""


def build_models(spec: ModelSpec, device: torch.device) -> Models:
    """Build a model on all three places. Raises what building raises."""
    with suspended():
        golden, same = spec.build_own("cpu").double(), spec.build_own("cpu")
    return Models(golden=golden.eval(), same=same.eval(), device=spec.build(str(device)).eval(), where=device)


@contextmanager
def in_float64(module: nn.Module) -> Iterator[Choices]:
    """Run a module of the golden, or all of it; what is yielded hears its choices."""
    with suspended(), Float64Mode(), Choices(module) as heard:
        yield heard


@contextmanager
def in_own_dtype(module: nn.Module, golden: Mapping[Place, Choice]) -> Iterator[Choices]:
    """Run a module of the yardstick, with the golden's choices."""
    with suspended(), Choices(module, follow=golden) as heard:
        yield heard


@contextmanager
def on_device(module: nn.Module, golden: Mapping[Place, Choice], same: Mapping[Place, Choice]) -> Iterator[Choices]:
    """Run a module on the device, with the golden's choices where rounding explains a difference."""
    with Choices(module, follow=golden, noise=same) as heard:
        yield heard


def run_three(models: Models, calls: Pass, *, keep_inputs: int) -> Three:
    """Run one pass on all three places and record every module."""
    with in_float64(models.golden) as golden:
        right = record_pass(calls, models.golden, CPU, keep_inputs=keep_inputs)
    with in_own_dtype(models.same, golden.made) as same:
        base = record_pass(calls, models.same, CPU)
    with on_device(models.device, golden.made, same.made) as heard:
        got = record_pass(calls, models.device, models.where)
    return Three(golden=right, same=base, device=got, choices=heard)


@dataclass(frozen=True, kw_only=True, slots=True)
class Logits:
    """The logits [B, S, V] of one pass on all three places, on the CPU."""

    golden: torch.Tensor
    same: torch.Tensor
    device: torch.Tensor
    lost: bool
    """Whether the device made choices that could not be followed."""


def followed(models: Models, calls: Pass, golden: torch.Tensor, choices: Mapping[Place, Choice]) -> Logits:
    """Run a pass on the yardstick and on the device; `golden` and `choices` are what the golden gave and chose in it."""
    with in_own_dtype(models.same, choices) as same:
        base = _logits(calls, models.same, CPU)
    with on_device(models.device, choices, same.made) as heard:
        got = _logits(calls, models.device, models.where)
    return Logits(golden=golden, same=base, device=got, lost=heard.lost)


def all_three(models: Models, calls: Pass) -> Logits:
    """Run a pass on all three places."""
    with in_float64(models.golden) as golden:
        right = _logits(calls, models.golden, CPU)
    return followed(models, calls, right, golden.made)


def _logits(calls: Pass, model: nn.Module, device: torch.device) -> torch.Tensor:
    return torch.cat([result.logits_BSV.detach().cpu() for _, result in walk(calls, model, device)], dim=1)

"""The model level runs prompts with images too, two at once: images that see each other show in a vision block."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from day0.analyzers.modules.check import check_model
from day0.models.source import open_model
from day0.models.spec import ModelSpec
from day0.playbook import ModelLevelPlan, ModelPlan

CPU = torch.device("cpu")
PLAN = ModelLevelPlan(new_tokens=1)


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return open_model(ModelPlan(source="toy", dtype="float32"))


def mixed(spec: ModelSpec) -> ModelSpec:
    """Return the model with a vision block on the device that adds to each image a little of its neighbour."""

    def see(module: nn.Module, args: Any, out: Any) -> Any:
        half = out.shape[0] // 2
        return out + 0.01 * torch.cat((out[half:], out[:half])) if out.shape[0] > 9 * 4 else out

    def build(place: str) -> nn.Module:
        model = spec.build(place)
        model.get_submodule("vision_tower.blocks.0").register_forward_hook(see)
        return model

    return dataclasses.replace(spec, build=build, own=spec.build)


def test_images_that_see_each_other_are_seen(spec: ModelSpec) -> None:
    found = check_model(mixed(spec), CPU, PLAN, decode=False)
    assert found.status == "fail"
    assert found.first_divergent.startswith("vision_tower.blocks.0 (VisionBlock) in vision")
    assert any(one.phase == "prefill" for one in found.modules), "the pass without images stays"


def test_without_such_a_phase_no_image_is_run(spec: ModelSpec) -> None:
    found = check_model(mixed(spec), CPU, PLAN, decode=False, pictures=False)
    assert found.status == "pass"
    assert not any(one.phase == "vision" for one in found.modules)

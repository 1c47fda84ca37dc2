"""The level of models: the toy on the device with a fault planted, or with a mistake in its own code.

Shape suffixes: B batch, S tokens.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from day0.analyzers.modules.check import MODEL_ERRORS, check_model
from day0.analyzers.modules.compare import Compared, compare_modules
from day0.analyzers.modules.passes import Call, Pass, token_calls, walk
from day0.analyzers.modules.places import build_models
from day0.devices.faults.load import planted
from day0.devices.sim.planting import Planting
from day0.models.driver import step
from day0.models.source import open_model
from day0.models.spec import ModelSpec
from day0.models.toy.config import ToyConfig
from day0.models.toy.faults import FAULTS, faulty
from day0.models.toy.model import ToyModel
from day0.models.workload import token_ids
from day0.playbook import ModelLevelPlan, ModelPlan
from day0.records import Alarm, Found, RightScore

__all__ = ["ON_MODELS", "TOY_MISTAKES", "clean_model", "planted_in_model", "toy_mistake"]

ON_MODELS = ("model_ops",)
"""Families of planted faults that are tried on this level too."""
TOY_MISTAKES = tuple(FAULTS)
TOKENS = 40
"""Beyond the toy's sparse top-k, and several pages of its cache."""
PLAN = ModelLevelPlan(new_tokens=3)
"""So that a cache is read twice after its first pages were written: what is stale in it shows from then on."""


def planted_in_model(name: str, device: torch.device) -> Found:
    """Run the toy with a fault planted and say which module is named."""
    spec = _toy()
    with planted(name) as plantings:
        if not _is_called(spec, device, plantings):
            return Found(how="not_measured", reason="the toy does not call its operators")
    with planted(name):
        return _found(spec, device)


def _is_called(spec: ModelSpec, device: torch.device, plantings: tuple[Planting, ...]) -> bool:
    """Say whether a pass, or one with an image, comes to the faulty kernel; on the device alone, which is quick."""
    model = spec.build(str(device)).eval()
    try:
        for calls in _passes(spec):
            for _ in walk(calls, model, device):
                pass
    except MODEL_ERRORS:
        return True
    return any(one.reached for one in plantings)


def _passes(spec: ModelSpec) -> tuple[Pass, Pass]:
    return token_calls(token_ids(spec, 1, TOKENS + 1, seed=0)), _image(spec)


def toy_mistake(name: str, device: torch.device) -> Found:
    """Run the toy with one mistake in its own code and say which module is named."""
    spec = _toy()

    def build(place: str) -> nn.Module:
        model = ToyModel(ToyConfig(), faulty(name))
        model.load_state_dict(spec.build("cpu").state_dict())
        return model.requires_grad_(False).to(spec.dtype).to(place).eval()

    return _found(dataclasses.replace(spec, build=build, own=spec.build), device)


def clean_model(device: torch.device, seed: int) -> RightScore:
    """Check the toy as it is, in the dtype that models come in."""
    done = check_model(_toy("bfloat16"), device, PLAN, seed=seed)
    alarms = () if done.status == "pass" else (_alarm(done.reason, seed),)
    return RightScore(subject="model toy", level="model", judged=1, alarms=alarms)


def _alarm(reason: str, seed: int) -> Alarm:
    return Alarm(
        op="toy", shapes="", implementation="", case=f"seed {seed}", status="fail", rule="model", reason=reason
    )


def _toy(dtype: str = "float32") -> ModelSpec:
    return open_model(ModelPlan(source="toy", dtype=dtype))


def _found(spec: ModelSpec, device: torch.device) -> Found:
    """Look at one pass module by module, at one with an image, and at last at decoding: what is quick comes first."""
    try:
        models = build_models(spec, device)
        for calls in _passes(spec):
            compared = compare_modules(models, calls, spec.dtype)
            if reason := _reason(compared):
                return Found(how="values", rule="module", reached=1, found=1, first=reason[0], reason=reason[1])
        done = check_model(spec, device, PLAN)
    except MODEL_ERRORS as error:
        return Found(how="raised", reached=1, found=1, reason=f"{type(error).__name__}: {error}"[:200])
    if done.status == "fail":
        return Found(how="other_cases", rule="decoding", reached=1, found=1, first="decoding", reason=done.reason)
    return Found(how="missed", reached=1, reason="no module, and no token, is further off than the dtype explains")


def _reason(compared: Compared) -> tuple[str, str] | None:
    """Return the module that is named and why, or None."""
    if compared.first_divergent:
        return compared.first_divergent, compared.reason
    if compared.non_finite is not None and not compared.non_finite.also_on_cpu:
        return compared.non_finite.module, f"{compared.non_finite.elements} NaN or infinite elements"
    return ("the pass", compared.reason) if compared.reason else None


def _image(spec: ModelSpec) -> Pass:
    """Return one pass of two prompts with an image each, whose values every dtype holds exactly."""
    ids_BS = token_ids(spec, 2, TOKENS, seed=1)
    pixels = torch.randint(0, 5, (2, 3, 24, 24), generator=torch.Generator().manual_seed(1)) / 4

    def run(model: nn.Module, device: torch.device, _: Any) -> Any:
        dtype = next(model.parameters()).dtype
        return step(model, ids_BS.to(device), inputs={"pixel_values": pixels.to(device, dtype)})

    return (Call(name="image", run=run),)

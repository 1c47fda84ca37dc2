"""What a worker has to know, as data, and what it makes of it: the device, the implementations, the cases by key."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict

from day0.analyzers.cases.case import Case
from day0.analyzers.cases.plan import plan_cases
from day0.analyzers.checking.limits import Limits
from day0.devices.open import device_count, open_torch_device
from day0.devices.profile import DeviceProfile
from day0.implementation import Implementation
from day0.playbook import CheckPlan
from day0.records import Lock, Trace
from day0.reference_ops.load import load_operators
from day0.reference_ops.torch_ops import register_operators
from day0.registry.collect import collect

__all__ = ["Loaded", "Setting", "load", "warm"]


class Setting(BaseModel):
    """All that a worker of its own needs, so that it can be sent as text."""

    model_config = ConfigDict(frozen=True)

    profile: DeviceProfile
    lock: Lock
    trace: Trace | None
    """None for cases that come with their inputs."""
    plan: CheckPlan
    files: tuple[str, ...] = ()
    """Files of the user with implementations."""
    without: tuple[str, ...] = ()
    captured: dict[str, str] = {}
    """Files with real values by signature, as `find_captured` names them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """The same, opened."""

    device: torch.device
    lock: Lock
    implementations: tuple[Implementation, ...]
    cases: Mapping[str, Case]
    limits: Limits


def load(setting: Setting) -> Loaded:
    """Open the device and gather implementations and cases. Raises Day0Error for what is not there."""
    register_operators()
    device = open_torch_device(setting.profile)
    trace, devices = setting.trace, device_count(device)
    cases = plan_cases(trace, setting.plan, setting.captured, devices=devices) if trace is not None else ()
    return Loaded(
        device=device,
        lock=setting.lock,
        implementations=collect(tuple(Path(one) for one in setting.files), without=setting.without),
        cases={case.key: case for case in cases},
        limits=Limits(case_timeout_s=setting.plan.case_timeout_s, max_bytes=setting.plan.max_case_mib << 20),
    )


def warm() -> None:
    """Import what calls of operators import when they first need it: seconds that are no call's own."""
    importlib.import_module("torch._dynamo")
    load_operators()

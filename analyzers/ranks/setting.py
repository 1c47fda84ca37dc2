"""What a rank has to know, as data, and what it gives back: both travel as JSON in a folder of their own."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict

from day0.devices.profile import DeviceProfile
from day0.playbook import ModelPlan, RegisterPlan
from day0.records import Lock, RankResult

__all__ = ["LEAVING", "LOST", "Facts", "RanksSetting", "backend_of"]

LOST = re.compile(r"connection (closed|reset|refused)|broken pipe|remote (process|peer|worker)", re.IGNORECASE)
"""What a rank raises because another one is gone."""
LEAVING = "leaving"
"""The phase of a rank that has nothing left to do: that its process ends then is no loss."""


class RanksSetting(BaseModel):
    """One start of all ranks."""

    model_config = ConfigDict(frozen=True)

    model: ModelPlan
    profile: DeviceProfile
    ranks: int
    whole_experts: bool = False
    prompt_tokens: int
    new_tokens: int
    time_only: bool = False
    """Weights are drawn on the device and no golden is made: for sizes of which a golden takes too long."""
    repeats: int = 3
    """How often each collective is repeated, and each step timed."""
    register_: RegisterPlan = RegisterPlan()
    """Where implementations of the lock are looked for."""
    lock: Lock | None = None
    """What stands in for operators of day0 that the device has no kernel for; None: nothing has to."""
    scenarios: tuple[str, ...] = ("",)
    """Faults that are planted one after the other in the same processes; empty text: none."""
    step_s: float = 120.0
    """Seconds that a rank may take for one step without a word: a forward, building the model."""
    collective_s: float = 60.0
    """Seconds that it may wait in one collective while no other rank has anything else to do."""


class Facts(BaseModel):
    """What one rank found in one scenario."""

    model_config = ConfigDict(frozen=True)

    result: RankResult
    planted_calls: int = 0
    """How often the planted fault was reached; 0 explains why nobody caught it."""
    logits: dict[str, str] = {}
    """Hash of the bits of the logits by phase."""
    wrong_choices: dict[str, str] = {}
    """Rows that were chosen otherwise than rounding explains, by module and number of its choice."""
    plan: dict[str, str] = {}


def backend_of(device_type: str) -> str:
    """Return torch's backend of collectives for a type of device; empty where it has none."""
    from torch.distributed import Backend

    return str(Backend.default_device_backend_map.get(device_type, ""))

"""A playbook: which model, which workload, which device, which gates. Data, read from YAML."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

__all__ = [
    "CanaryPlan",
    "CheckPlan",
    "Gate",
    "ModelLevelPlan",
    "ModelPlan",
    "PhasePlan",
    "Playbook",
    "RegisterPlan",
    "StagePlan",
    "WorkloadPlan",
]


class _Plan(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


def _plain_name(value: str) -> str:
    if not value or value.startswith(".") or "/" in value or "\\" in value or "\0" in value:
        raise ValueError("expected a plain name without slashes")
    return value


class ModelPlan(_Plan):
    """Where the model comes from."""

    source: str
    """`toy`, `hf:<model_type>`, `hf:<folder with config.json>`, `py:<module or file>:<factory>` or `export:<file>`."""
    set: dict[str, JsonValue] = {}
    """Config fields to change, for example to shrink the model."""
    dtype: str = "bfloat16"
    seed: int = 0
    trust_remote_code: bool = False
    shrink: bool = False
    """A small version of the config with the same structure: few layers of each kind, few experts, small widths."""
    adapt: tuple[str, ...] = ()
    """Adapters whose modules call our operators instead of their own code, by name; `all` for every one that fits."""


class PhasePlan(_Plan):
    """One phase: how many new tokens after how many in the cache."""

    tokens: int = Field(ge=1, le=1 << 24)
    context: int = Field(default=0, ge=0, le=1 << 24)


class WorkloadPlan(_Plan):
    """Phases to run. Without phases they follow from the model (design: trace)."""

    batch: int = Field(default=1, ge=1, le=1 << 16)
    world_size: int = Field(default=1, ge=1, le=1 << 16)
    """More than 1: trace one rank of so many, cut by the model's own tensor-parallel plan."""
    phases: dict[str, PhasePlan] = {}


class RegisterPlan(_Plan):
    """Which implementations may close gaps."""

    namespace: str = "base"
    fallback: Literal["cpu", "device", "none"] = "cpu"
    """Last resort: the reference on the CPU, the reference on the device only, or nothing."""
    replacements: bool = True
    """False leaves every gap open: shows what the device lacks."""
    load: tuple[str, ...] = ()
    """Files with implementations of your own (the `--with` of the command line)."""
    without: tuple[str, ...] = ()
    """Installed packages whose implementations are left out."""
    strict: bool = False
    """Refuse two implementations of equal rank that share a call, or may share one, though no traced call is it."""
    replace: tuple[str, ...] = ()
    """Operators to replace though the device has them, such as `aten::topk`; only kernels and decompositions qualify."""


class ModelLevelPlan(_Plan):
    """How the model level of the check runs the whole model."""

    new_tokens: int = Field(default=4, ge=1, le=256)
    """Tokens that are decoded, greedily and sampled."""
    max_mib: int = Field(default=512, ge=1)
    """Weights of a larger model are not built three times, once of them in float64: the level is skipped."""


class CheckPlan(_Plan):
    """How signatures are turned into cases."""

    level: Literal["ops", "model", "all"] = "all"
    """Operators, the whole model, or both."""
    model: ModelLevelPlan = ModelLevelPlan()

    seed: int = 0
    regimes: tuple[Literal["ordinary", "wide", "ties"], ...] = ("ordinary", "wide", "ties")
    max_case_mib: int = Field(default=256, ge=1)


class Gate(_Plan):
    """A rule that a canary stage must satisfy."""

    metric: str
    rule: Literal["<=", ">=", "=="]
    limit: float = Field(allow_inf_nan=False)


class StagePlan(_Plan):
    """The gates of one canary stage. No gates: the stage's own."""

    gates: tuple[Gate, ...] = ()


class CanaryPlan(_Plan):
    """Which stages, with which gates. No stages: all of them, in their order."""

    stages: dict[str, StagePlan] = {}
    prompt_tokens: int = Field(default=16, ge=1, le=1 << 20)
    new_tokens: int = Field(default=8, ge=1, le=1 << 16)


class Playbook(_Plan):
    """All that one run needs."""

    schema_: Literal["day0.playbook/1"] = Field(alias="schema")
    name: Annotated[str, AfterValidator(_plain_name)]
    description: str = ""
    model: ModelPlan
    workload: WorkloadPlan = WorkloadPlan()
    trace: Literal["auto", "meta", "fake", "real"] = "auto"
    device: str
    register_: RegisterPlan = Field(default=RegisterPlan(), alias="register")
    check: CheckPlan = CheckPlan()
    canary: CanaryPlan = CanaryPlan()

    @model_validator(mode="before")
    @classmethod
    def _newer(cls, data: object) -> object:
        if isinstance(data, dict) and isinstance(schema := data.get("schema"), str):
            name, _, number = schema.partition("/")
            if name == "day0.playbook" and number.isdecimal() and int(number[:9]) > 1:
                raise ValueError(f"it has schema {schema}, and this day0 reads day0.playbook up to /1; update day0")
        return data

"""A playbook: which model, which workload, which device, which gates. Data, read from YAML."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

__all__ = [
    "CanaryPlan",
    "CheckPlan",
    "ExpectedFailure",
    "Gate",
    "Inconclusive",
    "ModelLevelPlan",
    "ModelPlan",
    "PhasePlan",
    "Playbook",
    "PlaybookHead",
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


def _some_text(value: str) -> str:
    if not value.strip():
        raise ValueError("expected a reason")
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


class ExpectedFailure(_Plan):
    """Cases that are known to fail, and why. What is left out matches everything."""

    op: str
    """Operator with or without its overload."""
    shapes: str = ""
    """As the report shows them: `bfloat16[2, 16] int64[2]`."""
    signature: str = ""
    """Id of a signature, as in trace.json."""
    regime: str = ""
    status: Literal["fail", "fell_back", "undelegated", "crashed", "hung"]
    reason: Annotated[str, AfterValidator(_some_text)]
    until: date | None = None
    """After this day the failure counts again."""


RegimeName = Literal[
    "ordinary",
    "wide",
    "ties",
    "near_ties",
    "constant",
    "zeros",
    "tiny",
    "negative",
    "large",
    "extreme",
    "partial_overflow",
    "subnormal",
    "non_finite",
    "masked",
    "unread",
    "impulse",
    "large_integers",
]
"""Files of analyzers/cases/regimes."""


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
    regimes: tuple[RegimeName, ...] = get_args(RegimeName)
    """Which values inputs have; docs/cases.md says what each is for."""
    derived: bool = True
    """Also check calls that follow from the traced ones: other layouts and sizes, repeated, in parts, to be refused."""
    thorough: bool = False
    """Derive from every traced signature, and not from one of each kind; and try the forms that take long."""
    max_case_mib: int = Field(default=256, ge=1)
    case_timeout_s: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    """Seconds for one call on the device; None: from what it costs (docs/check.md)."""
    expect: tuple[ExpectedFailure, ...] = ()
    """Cases that are known to fail. Strict: one that passes, and an entry that matches nothing, are failures too."""


Inconclusive = Literal["fail", "pass", "warn"]
"""What an undecided gate does to its stage: it fails; it passes in silence; or it passes with a warning that is shown."""


class Gate(_Plan):
    """A rule that a canary stage must satisfy."""

    metric: str
    rule: Literal["<=", ">=", "=="]
    limit: float = Field(allow_inf_nan=False)
    inconclusive: Inconclusive | None = None
    """What becomes of the stage if the figure cannot decide. None: as the stage's own gate on it says, else the plan."""


class StagePlan(_Plan):
    """The gates of one canary stage. No gates: the stage's own."""

    gates: tuple[Gate, ...] = ()


class CanaryPlan(_Plan):
    """Which stages, with which gates. No stages: all of them, in their order."""

    stages: dict[str, StagePlan] = {}
    prompt_tokens: int = Field(default=16, ge=1, le=1 << 20)
    new_tokens: int = Field(default=8, ge=1, le=1 << 16)
    reference_mib: int = Field(default=4096, ge=1)
    """A reference on the CPU whose weights take more is run one layer at a time, from a folder of safetensors."""
    inconclusive: Inconclusive | None = None
    """For gates that say nothing themselves; None: those whose evidence is a must fail, the others warn."""
    soak_s: float = Field(default=2.0, gt=0.0, le=7 * 86400.0, allow_inf_nan=False)
    """Seconds of the soak."""


class Playbook(_Plan):
    """All that one run needs."""

    schema_: Literal["day0.playbook/1"] = Field(alias="schema")
    name: Annotated[str, AfterValidator(_plain_name)]
    description: str = ""
    model: ModelPlan
    workload: WorkloadPlan = WorkloadPlan()
    trace: Literal["auto", "meta", "fake", "real"] = "auto"
    capture: bool = False
    """Keep the values of traced calls, for the check to run on. Needs a trace of mode real."""
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


class PlaybookHead(_Plan):
    """What a playbook may have besides the fields of a plan. A plan is what remains once all of it was worked out."""

    include: str | tuple[str, ...] = ()
    """Files below the playbook's folder, or names of playbooks that ship with day0; what stands later wins."""
    remove: tuple[str, ...] = ()
    """Fields of the included files that are left out, by their dotted names: `workload.phases`."""
    vars: dict[str, JsonValue] = {}
    """Values for `${name}`."""
    matrix: dict[str, tuple[JsonValue, ...]] = {}
    """Fields or variables, each with the values it takes in turn; `exclude` lists combinations that are left out."""

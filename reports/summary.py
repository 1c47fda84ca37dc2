"""The body of `report.json`, schema day0.report/1; Markdown, HTML and JUnit are drawn from it.

Every text in it is clean by its type, so that no renderer can forget.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from day0.records import Verdict
from day0.reports.clean import clean, path_below

__all__ = [
    "Action",
    "Beside",
    "Case",
    "Choice",
    "Fast",
    "GateLine",
    "OpenGap",
    "Operator",
    "OperatorError",
    "Point",
    "Right",
    "Skipped",
    "Stage",
    "StageStatus",
    "Step",
    "Summary",
    "Text",
    "VerdictLine",
    "Warned",
]

Text = Annotated[str, BeforeValidator(clean)]
Below = Annotated[str, BeforeValidator(path_below)]
"""A path below the run folder, as text."""

StageStatus = Literal["pass", "fail", "stale", "missing"]
"""`stale`: the record does not belong to the records beside it. `missing`: there is none."""


class Part(BaseModel):
    """Base of all parts."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Stage(Part):
    """One of the five stages."""

    name: Literal["trace", "inventory", "register", "check", "canary"]
    question: str
    status: StageStatus
    headline: Text
    problems: tuple[Text, ...] = ()
    """Why it did not pass, most important first."""
    blocked_by: Text = ""
    """The first earlier stage that did not pass."""
    file: str
    command: Text
    """Makes the record, or makes it again."""


class VerdictLine(Part):
    """How much of the model has one verdict."""

    verdict: Verdict
    meaning: str
    signatures: int
    calls: int
    share: float
    left_open: int
    """Signatures that nothing in the lock closes; all gaps while there is no lock."""


class Operator(Part):
    """One operator in the inventory, with its share by verdict."""

    op: Text
    signatures: int
    calls: int
    share: float
    weights: dict[Verdict, float]
    """Share of the whole model, by `Summary.weighted_by`."""


class OpenGap(Part):
    """Calls that have no implementation, one line for each operator and its dtypes."""

    operator: Text
    dtypes: tuple[Text, ...]
    signatures: int
    calls: int
    share: float
    verdict: Text
    """What the device says by itself."""
    module: Text
    source: Text
    reason: Text
    refused: tuple[Text, ...] = ()
    """Candidates that were looked at, each with the reason of its refusal."""
    options: tuple[Text, ...] = ()
    """Implementations that could close it, while there is no lock."""


class Choice(Part):
    """An implementation that stands in, one line for each operator and its dtypes."""

    operator: Text
    dtypes: tuple[Text, ...]
    implementation: Text
    """`namespace:id==version`."""
    contract: int
    kind: Literal["kernel", "decomposition", "reference", "cpu_fallback"]
    signatures: int
    calls: int
    share: float
    ran: int | None
    """Calls in all canary stages together; None while there is no canary."""
    reason: Text
    refused: tuple[Text, ...] = ()
    origin: Text
    source_hash: Text


class Case(Part):
    """One numerics case."""

    op: Text
    shapes: Text
    regime: Text
    seed: int
    implementation: Text
    status: Text
    rule: Text
    reason: Text
    golden: Text
    error: float | None
    yardstick: float | None
    limit: float | None
    worst: Text
    """Index, value and expected value of the worst element."""
    reproducer: Below
    share: float


class Skipped(Part):
    """Cases that could not be judged, one line for each operator and reason."""

    op: Text
    reason: Text
    cases: int


class Warned(Part):
    """What is within the rules of one operator and shows in a model all the same."""

    op: Text
    cases: int
    texts: tuple[Text, ...]
    """The first different ones."""
    shapes: Text
    """Of the first case."""


class OperatorError(Part):
    """The case of one operator that came nearest to its limit, or went furthest beyond it."""

    op: Text
    status: Text
    """The worst status of the operator's cases."""
    cases: int
    error: float
    yardstick: float | None
    """What the dtype itself costs."""
    limit: float | None
    shapes: Text
    regime: Text
    implementation: Text
    worst: Text
    reproducer: Below = ""


class Right(Part):
    """How right the numbers are: the largest error over what the dtype itself costs."""

    op: Text
    regime: Text
    error: float
    yardstick: float
    ratio: float
    limit: float | None


class Point(Part):
    """What one operator does in its time. FLOPs and bytes are of all calls together."""

    op: Text
    how: Literal["modelled", "simulated", "measured"]
    """`modelled`: by the inventory's roofline. `simulated`: by the clock of a simulated device."""
    calls: int
    seconds: float
    bytes: int
    flops: int
    verdict: Text = ""
    bandwidth_share: float | None = None
    """Of the peak of the device's profile."""
    compute_share: float | None = None


class Fast(Part):
    """How fast the model decodes, by the widest canary stage that knows."""

    seconds_per_token: float
    stage: Text
    how: Literal["simulated", "measured"]
    roofline_share: float | None = None
    """Time at the peaks of the profile over the operators' own time, in one pass."""


class Beside(Part):
    """A record beside the five stages."""

    name: Literal["fit", "endpoint", "ranks", "soak"]
    title: str
    file: str
    status: Literal["pass", "fail", "skipped", "missing", "damaged", "stale"]
    headline: Text
    command: Text
    """Makes the record."""


class GateLine(Part):
    """One gate of a canary stage."""

    rule: Text
    """`worst_error <= 0.01`."""
    value: float | None
    low: float | None = None
    high: float | None = None
    verdict: Literal["successful", "failed", "inconclusive"]
    passed: bool
    """Whether the stage may pass."""
    reason: Text


class Step(Part):
    """One canary stage."""

    name: Text
    title: Text
    status: Literal["pass", "fail", "skipped"]
    reason: Text
    gates: tuple[GateLine, ...]
    metrics: dict[Text, float]
    warnings: tuple[Text, ...] = ()
    diverged: Text = ""
    """The operator or module that went wrong first."""
    evidence: Below


class Action(Part):
    """Something to do."""

    kind: Literal["close_gap", "repair", "meet_gate", "run_stage", "replace_fallback", "remove_sync"]
    what: Text
    why: Text
    command: Text
    share: float
    """Share of the model's roofline time that it touches."""
    blocking: bool
    """False for what only makes a model faster that is ready."""


class Summary(Part):
    """What a run found, in one value."""

    name: Text
    model: Text
    model_class: Text
    dtype: Text
    parameters: int
    parameter_bytes: int
    fingerprint: Text
    overrides: dict[Text, Text]
    adapted: dict[Text, Text] = {}
    """Modules that call our operators, by adapter."""
    device: Text
    can_run: bool
    why: Text
    caveats: tuple[Text, ...]
    """What the verdict does not cover."""
    stages: tuple[Stage, ...]
    weighted_by: Literal["share", "calls"]
    """`calls` where the device has no roofline figures."""
    verdicts: tuple[VerdictLine, ...]
    operators: tuple[Operator, ...]
    """Heaviest first."""
    gaps: tuple[OpenGap, ...]
    replacements: tuple[Choice, ...]
    checks: dict[str, int]
    """Cases by status."""
    failures: tuple[Case, ...]
    """Worst first."""
    nearest: tuple[Case, ...]
    """Passing cases that came nearest to their limit."""
    skipped: tuple[Skipped, ...]
    canary: tuple[Step, ...]
    next: tuple[Action, ...]
    """The first three things to do."""
    more_actions: int
    right: Right | None = None
    """None where nothing was measured."""
    errors: tuple[OperatorError, ...] = ()
    """Worst first."""
    warned: tuple[Warned, ...] = ()
    fast: Fast | None = None
    points: tuple[Point, ...] = ()
    """The slowest first; modelled ones behind."""
    beside: tuple[Beside, ...] = ()

"""The records that carry the flow from one stage to the next. Frozen, plain data, no torch.

Shapes and strides are ints, dtypes are torch's names without the prefix (`bfloat16`), so that a record can be
read where torch is not installed. A new optional field is free; anything else is a new schema number.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "GAP_VERDICTS",
    "CanaryReport",
    "CaseResult",
    "Decision",
    "Evidence",
    "Gap",
    "GateResult",
    "Identity",
    "Inventory",
    "InventoryEntry",
    "Leaf",
    "ListValue",
    "Lock",
    "LockEntry",
    "ModelInfo",
    "NumericsReport",
    "PhaseInfo",
    "Receipt",
    "Record",
    "ScalarValue",
    "Signature",
    "StageResult",
    "TensorValue",
    "Trace",
    "TraceEntry",
    "Value",
    "Verdict",
]


class Record(BaseModel):
    """Base of all records: frozen; unknown optional fields of a later writer are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


# ---------------------------------------------------------------------------------------------- trace


class TensorValue(Record):
    """A tensor argument: layout and, for integers whose values were seen, their range."""

    kind: Literal["tensor"] = "tensor"
    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    offset: int = 0
    alias: int | None = None
    """Arguments of one call with the same number share storage."""
    range: tuple[int, int] | None = None


class ScalarValue(Record):
    """A non-tensor argument, its value as text so that `True`, `1` and `1.0` stay apart."""

    kind: Literal["scalar"] = "scalar"
    type: Literal["none", "bool", "int", "float", "complex", "str", "dtype", "device", "layout", "memory_format"]
    value: str


class ListValue(Record):
    """A list or tuple argument."""

    kind: Literal["list"] = "list"
    items: tuple[Value, ...]


Value = Annotated[TensorValue | ScalarValue | ListValue, Field(discriminator="kind")]
ListValue.model_rebuild()


class Signature(Record):
    """How an operator was called once."""

    op: str
    """Qualified name with overload, as torch prints it: `aten::topk` or `aten::add.Tensor`."""
    args: tuple[Value, ...]
    kwargs: dict[str, Value] = {}


class TraceEntry(Record):
    """One signature, where it came from and how often it ran in each phase."""

    id: str
    """Sixteen hex digits of the SHA-256 over the canonical signature."""
    signature: Signature
    outputs: tuple[Value, ...]
    counts: dict[str, int]
    mutates: tuple[str, ...] = ()
    """Names of the arguments that the schema says are written to."""
    module: str = ""
    """Path of the first module that made the call."""
    module_class: str = ""
    modules: int = 1
    """In how many different modules it was seen."""
    source: str = ""
    """`file:line` of the first call, relative to the package it stands in."""
    host_sync: bool = False
    flops: int = 0
    bytes: int = 0


class ModelInfo(Record):
    """What was traced, with all that is needed to build it again."""

    source: str
    """`toy`, `hf:deepseek_v32`, `py:module:factory`."""
    overrides: dict[str, str] = {}
    """`--set key=value`, as typed."""
    dtype: str
    class_name: str
    parameters: int
    parameter_bytes: int
    fingerprint: str
    """SHA-256 over config, weights file and dtype: another model has another fingerprint."""


class PhaseInfo(Record):
    """One phase of the workload, as it was run."""

    name: str
    batch: int
    tokens: int
    """New tokens in this call."""
    context: int
    """Tokens already in the cache."""
    calls: int
    reason: str = ""
    """Why the phase is here, or why it could not run; then `calls` is 0."""
    images: int = 0
    """Images in each sequence; their visual tokens come on top of `tokens`."""
    mode: str = ""
    """How the phase was traced, where it was not in the trace's mode."""


class Trace(Record):
    """The deduplicated operator calls of a model under a workload."""

    model: ModelInfo
    mode: Literal["meta", "fake", "real"]
    mode_reason: str
    device: str
    """Where the calls were recorded: what a model calls depends on it."""
    assumed: dict[str, int] = {}
    """Mode `fake`: what depends on data and was assumed, and how often."""
    shrunk: dict[str, str] = {}
    """Config fields that were made smaller for this trace, `before -> after`; empty for the model as it is."""
    phases: tuple[PhaseInfo, ...]
    entries: tuple[TraceEntry, ...]


# ------------------------------------------------------------------------------------------ inventory

Verdict = Literal[
    "native",
    "out_wrapper",
    "decomposes",
    "decomposes_with_sync",
    "leaf_missing",
    "replaced",
    "cpu_fallback",
    "missing",
    "crashes",
    "unknown",
]


Evidence = Literal["probed", "static", "claimed"]
"""How one knows: measured on the device, read from the dispatcher, or said by a data sheet."""

GAP_VERDICTS: frozenset[str] = frozenset({"leaf_missing", "cpu_fallback", "missing", "crashes", "unknown"})
"""Verdicts of a device that cannot run the call by itself."""


class Leaf(Record):
    """An operator below a composite, and whether the device has it."""

    op: str
    supported: bool
    reason: str
    host_sync: bool = False


class InventoryEntry(Record):
    """What one traced signature meets on one device."""

    id: str
    op: str
    dtypes: tuple[str, ...]
    shapes: str
    """The tensor arguments as text, for people."""
    verdict: Verdict
    device_verdict: Verdict
    """What the device says by itself, before the registry is asked."""
    reason: str
    evidence: Evidence
    leaves: tuple[Leaf, ...] = ()
    options: tuple[str, ...] = ()
    """Implementations that could close the gap, best first."""
    calls: int = 0
    phases: tuple[str, ...] = ()
    module: str = ""
    source: str = ""
    share: float = 0.0
    """Share of the model's roofline time on this device, 0 to 1."""

    @property
    def is_gap(self) -> bool:
        """True where the device alone cannot run the call."""
        return self.device_verdict in GAP_VERDICTS


class Inventory(Record):
    """Every traced signature with its verdict on a device."""

    device: str
    model: str
    entries: tuple[InventoryEntry, ...]
    roofline_seconds: float = 0.0


# ------------------------------------------------------------------------------------------- register


class Identity(Record):
    """What makes an implementation itself; the same identity with another hash is a conflict."""

    operator: str
    contract: int
    namespace: str
    id: str
    version: str

    def __str__(self) -> str:
        return f"{self.operator}@{self.contract} {self.namespace}:{self.id}=={self.version}"


class Decision(Record):
    """One candidate that was looked at, and why it was taken or refused."""

    candidate: str
    accepted: bool
    reason: str


class LockEntry(Record):
    """The chosen implementation for the gaps of one operator with one tuple of dtypes."""

    operator: str
    """Qualified name with overload."""
    dtypes: tuple[str, ...]
    signatures: tuple[str, ...]
    identity: Identity
    kind: Literal["kernel", "decomposition", "reference", "cpu_fallback"]
    source_hash: str
    origin: str
    decisions: tuple[Decision, ...]


class Gap(Record):
    """A gap that nothing closes, with every candidate that was refused."""

    operator: str
    dtypes: tuple[str, ...]
    signatures: tuple[str, ...]
    calls: int
    module: str
    reason: str
    decisions: tuple[Decision, ...]


class Lock(Record):
    """The chosen implementation for every signature that needs one."""

    device: str
    namespace: str
    model: str
    entries: tuple[LockEntry, ...]
    gaps: tuple[Gap, ...] = ()


# ---------------------------------------------------------------------------------------------- check

CaseStatus = Literal["pass", "fail", "fell_back", "undelegated", "crashed", "hung", "skipped", "xfail", "xpass"]


class CaseResult(Record):
    """One call with one set of values, judged."""

    case: str
    """Key of the case: signature, value regime and seed."""
    signature: str
    op: str
    shapes: str
    implementation: str
    """`native` or the identity of the locked implementation."""
    regime: str
    seed: int
    status: CaseStatus
    rule: str
    """The rule that decided."""
    reason: str
    golden: str = ""
    """What it was measured against, for example `float64 on cpu`."""
    error: float | None = None
    """Relative L2 error against the golden."""
    yardstick: float | None = None
    """The same error of the same-dtype reference on the CPU: what the dtype itself costs."""
    limit: float | None = None
    """The largest error that would have passed."""
    worst_index: tuple[int, ...] | None = None
    worst_got: str = ""
    worst_expected: str = ""
    reproducer: str = ""
    """Path below the run folder, for a failed case."""


class NumericsReport(Record):
    """Every case with its status."""

    device: str
    lock: str
    seed: int
    cases: tuple[CaseResult, ...]


# --------------------------------------------------------------------------------------------- canary


class GateResult(Record):
    """A rule that a stage had to satisfy."""

    metric: str
    rule: Literal["<=", ">=", "=="]
    limit: float
    value: float | None
    passed: bool
    reason: str = ""


class Receipt(Record):
    """Proof that an implementation ran: who, how often, where."""

    identity: str
    operator: str
    kind: str
    device: str
    calls: int


class StageResult(Record):
    """One canary stage."""

    name: str
    title: str
    status: Literal["pass", "fail", "skipped"]
    reason: str
    gates: tuple[GateResult, ...] = ()
    metrics: dict[str, float] = {}
    receipts: tuple[Receipt, ...] = ()
    evidence: str = ""
    """Path below the run folder."""


class CanaryReport(Record):
    """The stages in the order in which they widen."""

    device: str
    lock: str
    allow_unverified: bool
    stages: tuple[StageResult, ...]

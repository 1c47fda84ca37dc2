"""The records that carry the flow from one stage to the next. Frozen, plain data, no torch.

Shapes and strides are ints, dtypes are torch's names without the prefix (`bfloat16`), so that a record can be
read where torch is not installed. A new optional field is free; anything else is a new schema number.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = [
    "GAP_VERDICTS",
    "CallEntry",
    "CanaryReport",
    "CaseResult",
    "Collective",
    "Decision",
    "Effort",
    "Evidence",
    "FitCard",
    "FitOption",
    "FitPlan",
    "FitProposal",
    "FitReport",
    "FitRow",
    "FloatStats",
    "Gap",
    "GateResult",
    "Identity",
    "ImportedText",
    "Inventory",
    "InventoryBlock",
    "InventoryEntry",
    "Leaf",
    "ListValue",
    "Lock",
    "LockEntry",
    "ModelInfo",
    "NumericsReport",
    "ParallelInfo",
    "PhaseInfo",
    "Receipt",
    "Record",
    "Replacement",
    "ScalarValue",
    "Signature",
    "Site",
    "StageResult",
    "TensorValue",
    "TextLine",
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
    shape: tuple[Annotated[int, Field(ge=0)], ...]
    dtype: str
    stride: tuple[Annotated[int, Field(ge=0)], ...]
    offset: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    alias: int | None = None
    """Arguments of one call with the same number share storage."""
    range: tuple[int, int] | None = None

    @model_validator(mode="after")
    def _possible(self) -> TensorValue:
        if len(self.shape) != len(self.stride):
            raise ValueError(f"{len(self.shape)} sizes and {len(self.stride)} strides")
        if math.prod(self.shape) >= 1 << 63:
            raise ValueError("it has more elements than 64 bits count")
        return self


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


class FloatStats(Record):
    """What the finite values of a float tensor were, over all calls, and how many values were not finite."""

    min: float | None
    """None where no value was finite; so are the other two."""
    max: float | None
    absmax: float | None
    nonfinite: int = 0


class Collective(Record):
    """What one call moves between the ranks of a group."""

    kind: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "other"]
    ranks: int
    bytes: int
    """What one rank gives to the operator."""
    wire_bytes: int
    """What one rank sends in the ring algorithm; other algorithms send more, or the same in fewer steps."""


Amount = Annotated[int, Field(ge=0, le=10**30)]
"""A count, FLOPs or bytes: never negative, and no more than arithmetic with floats can take."""


class Site(Record):
    """One signature within one chain of module classes: where the call was made, and what fed it."""

    number: int
    """Counts the sites of a trace in the order of their first calls."""
    classes: str
    """Classes of the modules around the call, outermost first: `ToyModel/KdaLayer/RmsNorm`."""
    counts: dict[str, Amount]
    """Calls in each phase."""
    modules: int = 1
    """How many different modules these are."""
    source: str = ""
    """`file:line` of the first call here."""
    inputs: dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], Amount] = {}
    """By number of another site: in how many calls an argument was, also as a view, a tensor that was made there."""


class TraceEntry(Record):
    """One signature, where it came from and how often it ran in each phase."""

    id: str
    """Sixteen hex digits of the SHA-256 over the canonical signature."""
    signature: Signature
    outputs: tuple[Value, ...]
    counts: dict[str, Amount]
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
    flops: Amount = 0
    bytes: Amount = 0
    output_aliases: tuple[tuple[str, ...], ...] = ()
    """For each output, the names of the arguments whose storage it shares. Empty: it shares none, or was not seen."""
    calls: tuple[str, ...] = ()
    """Ids of the calls that it stands below. Empty where no function was called: from C++, or in an older record."""
    stats: dict[str, FloatStats] = {}
    """Float arguments by name, results as `output 0`; only where the weights are real."""
    collective: Collective | None = None
    """Set for operators that talk to other ranks."""
    sites: tuple[Site, ...] = ()
    """The same calls by the classes of modules that make them; empty in traces of before there were sites."""


class CallEntry(Record):
    """One function as the model called it, and the operators that the dispatcher made of it."""

    id: str
    """Sixteen hex digits of the SHA-256 over the canonical signature."""
    signature: Signature
    """`op` is the function's name, such as `torch.nn.functional.linear`."""
    outputs: tuple[Value, ...]
    counts: dict[str, Amount]
    ops: dict[str, Amount] = {}
    """Ids of the operators below, and how often they ran below all of these calls together."""
    output_aliases: tuple[tuple[str, ...], ...] = ()
    """For each output, the arguments whose storage it shares, by name or by position."""
    module: str = ""
    """Path of the first module that made the call."""
    module_class: str = ""
    modules: int = 1
    source: str = ""
    """`file:line` of the first call."""
    host_sync: bool = False
    """The host waits for the device: an operator below does, or the function reads values past the dispatcher."""
    flops: Amount = 0
    """Of one call: the mean over the calls, rounded."""
    bytes: Amount = 0
    """Likewise; what the operators below move, which a fused kernel would move in part only."""


class ModelInfo(Record):
    """What was traced, with all that is needed to build it again."""

    source: str
    """`toy`, `hf:deepseek_v32`, `py:module:factory`."""
    overrides: dict[str, str] = {}
    """`--set key=value`, as typed."""
    dtype: str
    class_name: str
    parameters: Amount
    parameter_bytes: Amount
    weights: str = ""
    """Which weights a real trace had: loaded from where, or random from which seed. Empty for one without values."""
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


class ParallelInfo(Record):
    """How the model was cut for one rank of several."""

    world_size: int
    rank: int = 0
    plan: dict[str, str]
    """The model's own rules that were applied, module or parameter to style, layers written as `*`."""
    unused: tuple[str, ...] = ()
    """Rules of the plan that name nothing in this model."""
    parameters: int
    """Of this rank."""
    parameter_bytes: int


class TextLine(Record):
    """One line of a traced-inputs text that was imported."""

    entry: str = ""
    """Id of the signature that the line calls; empty for a line without one."""
    count: int = 0
    text: str | None = None
    """The line as it stood; None where writing the entry gives the very same bytes."""
    refused: str = ""
    """Why a call is in the text and not among the entries."""


class ImportedText(Record):
    """A traced-inputs text, line by line: what is needed to give it back byte for byte."""

    file: str
    sha256: str
    lines: tuple[TextLine, ...]
    """Joined by newlines they are the text; the last one is empty if the text ended with a newline."""


class Trace(Record):
    """The deduplicated operator calls of a model under a workload."""

    model: ModelInfo
    mode: Literal["meta", "fake", "real", "imported"]
    mode_reason: str
    device: str
    """Where the calls were recorded: what a model calls depends on it."""
    assumed: dict[str, int] = {}
    """Mode `fake`: what depends on data and was assumed, and how often."""
    shrunk: dict[str, str] = {}
    """Config fields that were made smaller for this trace, `before -> after`; empty for the model as it is."""
    phases: tuple[PhaseInfo, ...]
    entries: tuple[TraceEntry, ...]
    calls: tuple[CallEntry, ...] = ()
    """The level above `entries`: functions as the model called them. Empty in older records."""
    parallel: ParallelInfo | None = None
    """Set where one rank of several was traced: shapes and costs are that rank's."""
    imported: ImportedText | None = None
    """The text that the calls come from, where no model was run."""


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
    verdict: Verdict | None = None
    """What the device does with it; None in records from before this was said."""
    call: str = ""
    """Dtype and rank of each tensor, then dtype arguments: `float32[2] int64[1]`."""


Effort = Literal[
    "alias",
    "elementwise",
    "decomposition",
    "reduction",
    "gather_scatter",
    "gemm",
    "attention",
    "recurrence",
    "host_sync",
    "unknown",
]
"""What kind of work a gap is, from an afternoon to weeks; `unknown` where nothing tells."""


class Replacement(Record):
    """One way to close a gap, with what it would cost."""

    name: str
    """Identity of an implementation, or what else would be done."""
    kind: Literal["kernel", "decomposition", "reference", "torch_decomposition", "cpu_fallback"]
    seconds: float | None = None
    """Roofline time of all calls by this way on the device; None where it cannot be said."""
    note: str = ""
    """Why it costs that, or why nobody can say."""


class InventoryBlock(Record):
    """Operators that together are one known operator, or could be one: a single replacement takes all of them."""

    name: str
    """Name of the file in `analyzers/blocks` that knows it."""
    title: str
    kind: Literal["block", "fusion"] = "block"
    """A block is computed in one place; a fusion joins neighbours, and may overlap blocks."""
    operators: tuple[str, ...] = ()
    """Operators of ours that are this block; empty where none is."""
    recognised: Literal["module", "pattern", "operator"]
    """By the class of the module, by the operators and who feeds whom, or because the model calls our operator."""
    reason: str
    module_classes: tuple[str, ...] = ()
    sites: int
    """In how many places of the model it stands."""
    calls: dict[str, int]
    """How often it runs in each phase."""
    entries: tuple[str, ...] = ()
    """Identities of the signatures that it covers, wholly or in part."""
    launches: int = 0
    """Operator calls that it covers and that run on the device (views do not)."""
    share: float = 0.0
    """Share of the model's roofline time, 0 to 1."""
    gaps: dict[str, int] = {}
    """Operators that the device lacks, and how many calls of them a replacement of the block makes unnecessary."""
    closes: tuple[str, ...] = ()
    """Those of them that are called nowhere else."""
    bytes_saved: int = 0
    """Bytes of intermediate results that a fused kernel neither writes nor reads again, over all calls."""
    saved: float = 0.0
    """Share of the model's roofline time that these bytes and the launches are."""
    options: tuple[str, ...] = ()
    """Implementations of the operators that say they run on the device, best first; not judged on shapes here."""


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
    effort: Effort | None = None
    """For a gap: what kind of work it is to close it."""
    effort_why: str = ""
    """What the effort class was read from."""
    replacements: tuple[Replacement, ...] = ()
    """For a gap: the options with their kind and what they would cost, cheapest kind of work first."""

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
    blocks: tuple[InventoryBlock, ...] = ()
    """Groups of operators that form a known operator, and fusions; by share."""


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


# ------------------------------------------------------------------------------------------------ fit


class FitRow(Record):
    """One kind of weight or of cache. For a cache, `bytes` is what one sequence of the asked context takes."""

    name: str
    title: str
    format: str
    values: int
    bytes: int
    shared_by: str
    """Which parallelism divides it."""
    layers: int = 0
    bytes_per_token: float = 0.0


class FitCard(Record):
    """What a card of the fullest pipeline stage holds, in bytes."""

    cards: int
    tp: int
    ep: int
    pp: int
    dp: int
    stage: int
    weights: dict[str, int]
    replicated: int
    """Of the weights, what every card of a stage holds whole."""
    cache: dict[str, int]
    workspace: int
    workspace_format: str
    activations: int
    communication: int
    saved: int = 0
    """Training: what forward keeps for backward."""
    gradients: int = 0
    optimizer: int = 0
    total: int
    usable: int
    """Memory less the reserve."""
    free: int
    """Negative where it does not fit."""
    sequences: int
    """How many sequences of the asked context all cards together could hold."""
    rounded: tuple[str, ...] = ()


class FitPlan(Record):
    """Activations of one chunk on one card, in bytes."""

    planned: int
    """Tensors whose lifetimes do not meet share addresses."""
    unplanned: int
    """The sum of all tensors."""
    bound: int
    """The most that lives at one moment: no plan takes less."""
    written: int
    """Planned as the Python code stands: without operators that fuse attention and indexer."""
    tensors: int
    strategy: str
    note: str = ""


class FitOption(Record):
    """A number of cards with its best layout."""

    cards: int
    layout: str
    bytes_per_card: int
    fits: bool
    sequences: int


class FitProposal(Record):
    """What would take less memory, with what it saves on each card."""

    title: str
    why: str
    bytes_saved: int


class FitReport(Record):
    """How many cards a model needs and what takes their memory."""

    model: str
    class_name: str
    overrides: dict[str, str] = {}
    device: str
    memory_bytes: int
    reserve_bytes: int
    context: int
    batch: int
    """Sequences at one time, on all cards together."""
    chunk: int
    """Tokens of a prompt that run at one time."""
    parameters: int
    active_parameters: int
    weights: tuple[FitRow, ...]
    weight_bytes: int
    cache: tuple[FitRow, ...]
    asked: Literal["smallest", "layout", "cards"]
    fits: bool
    card: FitCard | None = None
    """None where no layout of the search fits."""
    plan: FitPlan | None = None
    options: tuple[FitOption, ...] = ()
    proposals: tuple[FitProposal, ...] = ()
    unread: str = ""
    """Why cache and activations are not in here, where the model does not run on meta."""

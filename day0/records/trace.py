"""Which operators a model calls, with which shapes, in which phase."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from day0.records._base import Record
from day0.records.calls import Signature, Value

__all__ = [
    "Amount",
    "CallEntry",
    "Collective",
    "FloatStats",
    "ImportedText",
    "ModelInfo",
    "ParallelInfo",
    "PhaseInfo",
    "Site",
    "TextLine",
    "Trace",
    "TraceEntry",
]


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
    inputs: dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], Amount] = Field(default_factory=dict)
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
    stats: dict[str, FloatStats] = Field(default_factory=dict)
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
    ops: dict[str, Amount] = Field(default_factory=dict)
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
    overrides: dict[str, str] = Field(default_factory=dict)
    """`--set key=value`, as typed."""
    dtype: str
    class_name: str
    parameters: Amount
    parameter_bytes: Amount
    weights: str = ""
    """Which weights a real trace had: loaded from where, or random from which seed. Empty for one without values."""
    fingerprint: str
    """SHA-256 over config, weights file and dtype: another model has another fingerprint."""
    adapted: dict[str, str] = Field(default_factory=dict)
    """Modules that call our operators instead of their own code: adapter to `9 LlamaRMSNorm`."""


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
    assumed: dict[str, int] = Field(default_factory=dict)
    """Mode `fake`: what depends on data and was assumed, and how often."""
    shrunk: dict[str, str] = Field(default_factory=dict)
    """Config fields that were made smaller for this trace, `before -> after`; empty for the model as it is."""
    phases: tuple[PhaseInfo, ...]
    entries: tuple[TraceEntry, ...]
    calls: tuple[CallEntry, ...] = ()
    """The level above `entries`: functions as the model called them. Empty in older records."""
    parallel: ParallelInfo | None = None
    """Set where one rank of several was traced: shapes and costs are that rank's."""
    imported: ImportedText | None = None
    """The text that the calls come from, where no model was run."""

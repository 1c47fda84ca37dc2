"""What the calls of a trace meet on a device."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from day0.records._base import Record

__all__ = [
    "GAP_VERDICTS",
    "Effort",
    "Evidence",
    "Inventory",
    "InventoryBlock",
    "InventoryEntry",
    "Leaf",
    "Replacement",
    "Verdict",
]


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
    gaps: dict[str, int] = Field(default_factory=dict)
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

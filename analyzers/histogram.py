"""How often an operator or a function is called with which shapes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from day0.errors import Day0Error, near_names
from day0.records import CallEntry, Trace, TraceEntry
from day0.reference_ops.signatures import shapes_text

__all__ = ["ShapeCount", "shape_histogram"]


@dataclass(kw_only=True, slots=True)
class ShapeCount:
    """One combination of tensor arguments, layouts and scalars aside."""

    name: str
    shapes: str
    """Dtypes and shapes in the order of the arguments."""
    counts: dict[str, int] = field(default_factory=dict)
    """Calls by phase."""
    flops: int = 0
    """Of all the calls."""
    signatures: int = 0
    """How many signatures are in it: strides, offsets and scalars differ."""

    @property
    def calls(self) -> int:
        """Calls in all phases."""
        return sum(self.counts.values())


def shape_histogram(trace: Trace, name: str = "") -> list[ShapeCount]:
    """Count the calls by operator and shapes, most first; with a name only of that operator or function.

    A name is one without or with its overload (`aten::mm`, `aten::add.Tensor`), without or with the path of a function
    (`linear`, `torch.nn.functional.linear`). Raises Day0Error for one that the trace does not have.
    """
    entries: list[TraceEntry | CallEntry] = [*trace.entries, *trace.calls] if name else [*trace.entries]
    chosen = [entry for entry in entries if not name or name in names_of(entry.signature.op)]
    if name and not chosen:
        known = tuple(sorted({one for entry in entries for one in names_of(entry.signature.op)}))
        hint = near_names(name, known) or "see the tables for the names that there are"
        raise Day0Error("--shapes", f"the trace has no operator and no function '{name}'", hint=hint)
    rows: dict[tuple[str, str], ShapeCount] = {}
    for entry in chosen:
        shapes = shapes_text(entry.signature)
        row = rows.setdefault((entry.signature.op, shapes), ShapeCount(name=entry.signature.op, shapes=shapes))
        _add(row, entry)
    return sorted(rows.values(), key=lambda row: (-row.calls, row.name, row.shapes))


def _add(row: ShapeCount, entry: TraceEntry | CallEntry) -> None:
    counts = defaultdict(int, row.counts)
    for phase, times in entry.counts.items():
        counts[phase] += times
    row.counts = dict(counts)
    row.flops += entry.flops * sum(entry.counts.values())
    row.signatures += 1


def names_of(op: str) -> set[str]:
    """Return the names under which a person may ask for an operator or a function."""
    if "::" in op:
        return {op, op.partition(".")[0], op.partition("::")[2].partition(".")[0]}
    return {op, op.rpartition(".")[2]}

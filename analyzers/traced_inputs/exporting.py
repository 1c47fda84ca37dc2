"""A trace to the traced-inputs text, and what gets lost on the way, by name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from day0.analyzers.traced_inputs.dtypes import ITEM_BYTES, SHORT_OF
from day0.analyzers.traced_inputs.grammar import contiguous_stride
from day0.analyzers.traced_inputs.writing import call_line, header_line
from day0.errors import Day0Error
from day0.records import ListValue, ScalarValue, Signature, Trace, TraceEntry, Value
from day0.reference_ops.signatures import tensor_values

__all__ = ["Exported", "export_trace"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A text and what is not in it."""

    text: str
    operators: int
    signatures: int
    kept_lines: int
    """Lines that were given back as they had been imported, since another spelling says the same."""
    losses: dict[str, int]
    """What the text has no place for, and in how many signatures."""
    left_out: dict[str, str]
    """Ids of signatures that are not in the text, and why."""


def export_trace(trace: Trace, *, extended: bool = False) -> Exported:
    """Write a trace as text. An imported one comes back byte for byte.

    `extended` also writes what public readers do not know: dtypes without a short name, offsets, shared storage, ranges.
    Raises Day0Error if an imported trace lacks an entry that its text names.
    """
    if trace.imported is not None:
        return _given_back(trace)
    left_out = {one.id: reason for one in trace.entries if (reason := _unwritable(one.signature, extended))}
    by_op: dict[str, list[TraceEntry]] = {}
    for entry in trace.entries:
        if entry.id not in left_out:
            by_op.setdefault(header_line(entry.signature.op), []).append(entry)
    lines: list[str] = []
    for header in sorted(by_op):
        lines.append(header)
        calls = [(sum(one.counts.values()), one) for one in by_op[header]]
        written = [(count, call_line(one.signature, count, extended=extended)) for count, one in calls]
        lines += [text for _, text in sorted(written, key=lambda pair: (-pair[0], pair[1]))]
    return Exported(
        text="".join(f"{line}\n" for line in lines),
        operators=len(by_op),
        signatures=len(lines) - len(by_op),
        kept_lines=0,
        losses=_losses(trace, left_out, extended),
        left_out=left_out,
    )


def _given_back(trace: Trace) -> Exported:
    assert trace.imported is not None  # noqa: S101 - the one caller has looked
    by_id = {entry.id: entry for entry in trace.entries}
    lines: list[str] = []
    for number, line in enumerate(trace.imported.lines, start=1):
        if line.text is None and line.entry not in by_id:
            raise Day0Error("trace.json", f"line {number} of its text names no entry", hint="import the text again")
        lines.append(call_line(by_id[line.entry].signature, line.count) if line.text is None else line.text)
    kept = sum(1 for line in trace.imported.lines if line.text is not None and (line.entry or line.refused))
    operators = {entry.signature.op for entry in trace.entries}
    return Exported(
        text="\n".join(lines),
        operators=len(operators),
        signatures=len(by_id),
        kept_lines=kept,
        losses={},
        left_out={},
    )


def _unwritable(signature: Signature, extended: bool) -> str:
    """Say why a call cannot stand in the text; empty if it can."""
    for value in tensor_values(signature):
        if value.dtype not in (ITEM_BYTES if extended else SHORT_OF):
            return f"{value.dtype} has no name in the text"
    for argument in (*signature.args, *signature.kwargs.values()):
        for scalar in _scalars(argument):
            if scalar.type == "dtype" and scalar.value not in (ITEM_BYTES if extended else SHORT_OF):
                return f"{scalar.value} has no name in the text"
    return ""


def _scalars(value: Value) -> list[ScalarValue]:
    if isinstance(value, ListValue):
        return [one for item in value.items for one in _scalars(item)]
    return [value] if isinstance(value, ScalarValue) else []


def _losses(trace: Trace, left_out: dict[str, str], extended: bool) -> dict[str, int]:
    lost: Counter[str] = Counter()
    for entry in trace.entries:
        if entry.id in left_out:
            continue
        lost["phases, modules, source lines, results, FLOPs and bytes"] += 1
        lost.update(_lost_of(entry.signature, extended))
    return dict(lost)


def _lost_of(signature: Signature, extended: bool) -> set[str]:
    """Return what one signature loses, each kind once."""
    found = set()
    if any(one.type == "device" for value in (*signature.args, *signature.kwargs.values()) for one in _scalars(value)):
        found.add("device arguments (written as 'cuda')")
    for value in tensor_values(signature):
        if extended:
            continue
        if value.range is not None:
            found.add("value ranges")
        if value.offset:
            found.add("storage offsets")
        if value.alias is not None:
            found.add("shared storage")
        usual = contiguous_stride(value.shape)
        sizes = zip(value.shape, value.stride, usual, strict=True)
        dense = 0 in value.shape or all(size < 2 or a == b for size, a, b in sizes)
        if dense and value.stride != usual:
            found.add("strides of dimensions of size one")
    return found

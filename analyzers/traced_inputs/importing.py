"""A text of traced inputs to a trace that inventory, register and check read like any other."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable

from day0.analyzers.traced_inputs.costing import PHASE, entry_of
from day0.analyzers.traced_inputs.document import Line, parse_lines
from day0.analyzers.traced_inputs.fitting import fit
from day0.analyzers.traced_inputs.writing import call_line
from day0.errors import Day0Error
from day0.records import ImportedText, ModelInfo, PhaseInfo, Signature, TextLine, Trace, TraceEntry
from day0.reference_ops.signatures import signature_id, tensor_values
from day0.reference_ops.torch_ops import register_operators

__all__ = ["import_trace"]


def import_trace(text: str, file: str, *, source: str, progress: Callable[[str], None] = lambda _: None) -> Trace:
    """Read a text. `file` names it in messages, `source` in the trace.

    The text knows no phases, modules, order or results: all calls stand in one phase, index arguments get the range
    that shapes allow, and FLOPs and bytes come from one run on meta. Calls that this torch does not have stay in the
    text with the reason. Raises Day0Error for what is not of the grammar, and for a text without any call.
    """
    register_operators()
    lines: list[TextLine] = []
    signatures: dict[str, Signature] = {}
    counts: Counter[str] = Counter()
    for line in parse_lines(text, file):
        if line.number % 1000 == 0:
            progress(f"line {line.number:,}")
        made, signature = _line(line)
        lines.append(made)
        if signature is not None:
            signatures.setdefault(made.entry, signature)
            counts[made.entry] += made.count
    if not signatures:
        _refuse_empty(lines, file)
    entries = []
    for number, (key, signature) in enumerate(signatures.items()):
        if number % 100 == 0:
            progress(f"{number:,} of {len(signatures):,} signatures")
        entries.append(entry_of(signature, counts[key]))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return _trace(entries, ImportedText(file=file, sha256=digest, lines=tuple(lines)), source)


def _line(line: Line) -> tuple[TextLine, Signature | None]:
    """Keep a line by its signature if writing that gives the same bytes, else as it stood."""
    if line.call is None:
        return TextLine(text=line.text), None
    signature = fit(line.op, line.call)
    if isinstance(signature, str):
        return TextLine(count=line.count, text=line.text, refused=signature), None
    same = call_line(signature, line.count) == line.text
    return TextLine(entry=signature_id(signature), count=line.count, text=None if same else line.text), signature


def _refuse_empty(lines: list[TextLine], file: str) -> None:
    refused = [f"line {number}: {one.refused}" for number, one in enumerate(lines, start=1) if one.refused]
    what = f"none of its {len(refused)} calls can be taken over" if refused else "there is no call in it"
    raise Day0Error(
        file, what, facts=tuple(refused[:5]), hint="a call is a line such as cnt: 3, ((T([2, 3], f16),), {})"
    )


def _trace(entries: list[TraceEntry], imported: ImportedText, source: str) -> Trace:
    calls = sum(sum(entry.counts.values()) for entry in entries)
    why = "the text has neither phases nor order"
    return Trace(
        model=ModelInfo(
            source=source,
            dtype=_common_dtype(entries),
            class_name="imported calls",
            parameters=0,
            parameter_bytes=0,
            fingerprint=f"sha256:{imported.sha256}",
        ),
        mode="imported",
        mode_reason=f"imported from {imported.file}; ranges of indices follow from shapes, costs from a run on meta",
        device="unknown",
        phases=(PhaseInfo(name=PHASE, batch=1, tokens=0, context=0, calls=calls, reason=why),),
        entries=tuple(sorted(entries, key=lambda one: (-one.counts[PHASE], one.signature.op, one.id))),
        imported=imported,
    )


def _common_dtype(entries: list[TraceEntry]) -> str:
    found = Counter(value.dtype for entry in entries for value in tensor_values(entry.signature))
    floats = {name: count for name, count in found.items() if "float" in name} or dict(found)
    return max(floats, key=lambda name: (floats[name], name), default="float32")

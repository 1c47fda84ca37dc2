"""Every traced operator and every locked implementation once, by the rules of the check."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from day0.analyzers.canary.context import CanaryContext, Measured
from day0.analyzers.cases.case import Case
from day0.analyzers.checking.case import check_case
from day0.analyzers.checking.limits import Limits
from day0.analyzers.checking.reproducer import write
from day0.analyzers.checking.setting import Loaded
from day0.playbook import Gate
from day0.records import CaseResult, Lock, Signature, TraceEntry
from day0.reference_ops.signatures import dtype_of, tensor_values

TITLE = "every operator and locked implementation once"
CALLS = "any"
GATES = (
    Gate(metric="failed_cases", rule="==", limit=0, inconclusive="fail"),
    Gate(metric="unplanned_fallbacks", rule="==", limit=0, inconclusive="fail"),
)
METRICS = {
    "operators": "traced operators that were run",
    "implementations": "locked implementations that were run",
    "cases": "calls that were judged",
    "failed_cases": "calls that are wrong, raise, or do not reach what the lock names",
    "unplanned_fallbacks": "calls that went to the CPU though the lock does not say so",
    "skipped_cases": "calls that could not be made or judged here",
}
MAX_BYTES = 64 << 20


def run(context: CanaryContext) -> Measured:
    """Run the smallest traced call of each operator and of each entry of the lock, with ordinary values."""
    if context.trace is None or not context.trace.entries:
        return Measured(metrics={}, unfit="there is no trace whose calls could be made")
    lock = context.active.lock
    chosen = chosen_cases(context.trace.entries, lock, context.seed)
    results = [check_case(case, context.device, context.active, lock, max_bytes=MAX_BYTES) for case in chosen]
    judged = [one for one in results if one.status != "skipped"]
    away = [one for one in judged if one.status == "fell_back" and one.implementation == "native"]
    wrong = [one for one in judged if one.failed and one not in away]
    bad = wrong or away
    owned = {one.implementation for one in judged if one.implementation != "native"}
    return Measured(
        metrics={
            "operators": float(len({one.op for one in judged})),
            "implementations": float(len(owned)),
            "cases": float(len(judged)),
            "failed_cases": float(len(wrong)),
            "unplanned_fallbacks": float(len(away)),
            "skipped_cases": float(len(results) - len(judged)),
        },
        evidence=_text(bad[0]) if bad else "",
        diverged=f"{bad[0].op} ({bad[0].implementation})" if bad else "",
        written=(written := _written(context, chosen, bad)),
        next_command=f"day0 repro {written}" if written else "",
    )


def chosen_cases(entries: Iterable[TraceEntry], lock: Lock, seed: int) -> list[Case]:
    """Return one case for each entry of the lock, and one for each traced operator; the smallest call of each."""
    by_size = sorted(entries, key=lambda one: (_bytes(one.signature), one.signature.op, one.id))
    owners = {name: number for number, entry in enumerate(lock.entries) for name in entry.signatures}
    found: dict[tuple[str, int], TraceEntry] = {}
    for one in by_size:
        found.setdefault((one.signature.op, owners.get(one.id, -1)), one)
    ordered = sorted(found.values(), key=lambda one: (one.signature.op, one.id))
    return [Case(signature_id=one.id, signature=one.signature, regime="ordinary", seed=seed) for one in ordered]


def _bytes(signature: Signature) -> int:
    return sum(math.prod(one.shape) * dtype_of(one.dtype).itemsize for one in tensor_values(signature))


def _text(one: CaseResult) -> str:
    return f"{one.op} {one.shapes} by {one.implementation}: {one.status}: {one.reason}"


def _written(context: CanaryContext, cases: list[Case], bad: list[CaseResult]) -> str:
    """Write a reproducer of the first call that is wrong; return its folder, empty where there is none."""
    if not bad or context.about_cases is None:
        return ""
    case = next(one for one in cases if one.key == bad[0].case)
    folder = context.evidence / "canary" / "one_op" / case.key
    loaded = Loaded(
        device=context.device,
        lock=context.active.lock,
        implementations=(),
        cases={},
        limits=Limits(max_bytes=MAX_BYTES),
    )
    if write(folder, case, bad[0], loaded, dict(context.about_cases)):
        return ""
    return str(Path(context.evidence.name) / folder.relative_to(context.evidence))

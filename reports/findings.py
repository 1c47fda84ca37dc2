"""What the records say about operators: verdict lines, open gaps and what stands in for them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from day0.records import Decision, Gap, InventoryEntry, LockEntry, Verdict
from day0.reports.bundle import Bundle
from day0.reports.stages import uncovered
from day0.reports.summary import Choice, OpenGap, Operator, VerdictLine

__all__ = ["MEANINGS", "Weights", "choices", "open_gaps", "operators", "verdict_lines", "weigh"]

MEANINGS: dict[Verdict, str] = {
    "native": "the device has it",
    "out_wrapper": "the device has its out form",
    "decomposes": "it comes down to operators that the device has",
    "decomposes_with_sync": "so it does, but waits for the host",
    "replaced": "the registry has an implementation",
    "cpu_fallback": "the device hands it to the CPU",
    "leaf_missing": "a part of it is missing",
    "missing": "the device lacks it",
    "crashes": "it stops the process",
    "unknown": "nobody could tell",
}
"""Every verdict, best first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """What a signature is worth: its calls and its share of the roofline time, by id."""

    calls: dict[str, int]
    share: dict[str, float]
    by: Literal["share", "calls"]

    def of(self, signatures: Iterable[str]) -> tuple[int, float]:
        """Return calls and share of some signatures together."""
        names = tuple(signatures)
        return sum(self.calls.get(one, 0) for one in names), math.fsum(self.share.get(one, 0.0) for one in names)


def weigh(bundle: Bundle) -> Weights:
    """Weigh every signature; by calls where the device has no roofline figures."""
    calls = {entry.id: sum(entry.counts.values()) for entry in bundle.trace.entries}
    share = {entry.id: entry.share for entry in bundle.inventory.entries} if bundle.inventory else {}
    return Weights(calls=calls, share=share, by="share" if any(share.values()) else "calls")


def verdict_lines(bundle: Bundle, weights: Weights) -> tuple[VerdictLine, ...]:
    """Return one line for each verdict that occurs, best first."""
    groups: dict[Verdict, list[InventoryEntry]] = defaultdict(list)
    for entry in bundle.inventory.entries if bundle.inventory else ():
        groups[entry.verdict].append(entry)
    closed = {name for entry in bundle.lock.entries for name in entry.signatures} if bundle.lock else set()
    lines = []
    for verdict, meaning in MEANINGS.items():
        members = groups.get(verdict, [])
        calls, share = weights.of(entry.id for entry in members)
        left = sum(1 for entry in members if entry.is_gap and entry.id not in closed)
        if members:
            lines.append(
                VerdictLine(
                    verdict=verdict,
                    meaning=meaning,
                    signatures=len(members),
                    calls=calls,
                    share=share,
                    left_open=left,
                )
            )
    return tuple(lines)


def operators(bundle: Bundle, weights: Weights) -> tuple[Operator, ...]:
    """Return the operators of the inventory, heaviest first."""
    groups: dict[str, list[InventoryEntry]] = defaultdict(list)
    for entry in bundle.inventory.entries if bundle.inventory else ():
        groups[entry.op].append(entry)
    total = sum(weights.calls.values()) or 1
    found = []
    for op, members in groups.items():
        calls, share = weights.of(entry.id for entry in members)
        by_verdict: dict[Verdict, float] = defaultdict(float)
        for entry in members:
            part = entry.share if weights.by == "share" else weights.calls.get(entry.id, 0) / total
            by_verdict[entry.verdict] += part
        found.append(Operator(op=op, signatures=len(members), calls=calls, share=share, weights=dict(by_verdict)))
    return tuple(sorted(found, key=lambda one: (-sum(one.weights.values()), one.op)))


def open_gaps(bundle: Bundle, weights: Weights) -> tuple[OpenGap, ...]:
    """Return the gaps that nothing closes, by share: those of the lock, or all of the inventory before there is one."""
    entries = {entry.id: entry for entry in bundle.inventory.entries} if bundle.inventory else {}
    if bundle.lock is None:
        left = [entry for entry in entries.values() if entry.is_gap]
        gaps = _group(left)
    else:
        gaps = [*bundle.lock.gaps, *_group([entries[name] for name in sorted(uncovered(bundle))])]
    found = [_open_gap(gap, entries, weights) for gap in gaps]
    return tuple(sorted(found, key=lambda one: (-one.share, -one.calls, one.operator, one.dtypes)))


def _group(left: Sequence[InventoryEntry]) -> list[Gap]:
    groups: dict[tuple[str, tuple[str, ...]], list[InventoryEntry]] = defaultdict(list)
    for entry in left:
        groups[(entry.op, entry.dtypes)].append(entry)
    return [
        Gap(
            operator=op,
            dtypes=dtypes,
            signatures=tuple(entry.id for entry in members),
            calls=sum(entry.calls for entry in members),
            module=members[0].module,
            reason=members[0].reason,
            decisions=(),
        )
        for (op, dtypes), members in groups.items()
    ]


def _open_gap(gap: Gap, entries: dict[str, InventoryEntry], weights: Weights) -> OpenGap:
    first = next((entries[name] for name in gap.signatures if name in entries), None)
    return OpenGap(
        operator=gap.operator,
        dtypes=tuple(dict.fromkeys(gap.dtypes)),
        signatures=len(gap.signatures),
        calls=gap.calls,
        share=weights.of(gap.signatures)[1],
        verdict=first.device_verdict if first else "unknown",
        module=gap.module,
        source=first.source if first else "",
        reason=gap.reason,
        refused=_refused(gap.decisions),
        options=first.options if first and not gap.decisions else (),
    )


def _refused(decisions: Iterable[Decision]) -> tuple[str, ...]:
    return tuple(f"{one.candidate}: {one.reason}" for one in decisions if not one.accepted)


def choices(bundle: Bundle, weights: Weights) -> tuple[Choice, ...]:
    """Return what the lock chose, by share, with how often each ran in the canary."""
    if bundle.lock is None:
        return ()
    ran: Counter[tuple[str, str]] = Counter()
    for stage in bundle.canary.stages if bundle.canary else ():
        for receipt in stage.receipts:
            ran[(receipt.operator, receipt.identity)] += receipt.calls
    found = [_choice(entry, weights, ran if bundle.canary else None) for entry in bundle.lock.entries]
    return tuple(sorted(found, key=lambda one: (-one.share, -one.calls, one.operator, one.dtypes)))


def _choice(entry: LockEntry, weights: Weights, ran: Counter[tuple[str, str]] | None) -> Choice:
    one = entry.identity
    calls, share = weights.of(entry.signatures)
    return Choice(
        operator=entry.operator,
        dtypes=tuple(dict.fromkeys(entry.dtypes)),
        implementation=f"{one.namespace}:{one.id}=={one.version}",
        contract=one.contract,
        kind=entry.kind,
        signatures=len(entry.signatures),
        calls=calls,
        share=share,
        ran=ran[(entry.operator, str(one))] if ran is not None else None,
        reason=next((decision.reason for decision in entry.decisions if decision.accepted), ""),
        refused=_refused(entry.decisions),
        origin=entry.origin,
        source_hash=entry.source_hash,
    )

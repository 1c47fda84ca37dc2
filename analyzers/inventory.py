"""Stage 2: what each traced signature meets on a device, and what to do first."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from day0.analyzers.effort import Pricer, effort_of
from day0.analyzers.grouping import blocks_of
from day0.devices.leaves import leaf_dtypes
from day0.devices.profile import DeviceProfile
from day0.devices.verdict import Classified, classify
from day0.implementation import Implementation
from day0.records import GAP_VERDICTS, Inventory, InventoryEntry, Trace, TraceEntry
from day0.reference_ops.signatures import shapes_text
from day0.registry.resolve import candidates_for, judge

__all__ = ["roofline_seconds", "take_inventory"]


def take_inventory(
    trace: Trace,
    profile: DeviceProfile,
    implementations: Iterable[Implementation],
    *,
    namespaces: tuple[str, ...] = ("base",),
    progress: Callable[[str], None] = lambda _: None,
) -> Inventory:
    """Give every traced signature a verdict on the device, ranked by its share of the roofline time.

    `namespaces` is the search path of the registry, most specific first.
    """
    known = tuple(implementations)
    seconds = {entry.id: roofline_seconds(entry, profile) for entry in trace.entries}
    total = sum(seconds.values()) or 1.0
    pricer = Pricer(profile, lambda one: roofline_seconds(one, profile))
    entries = []
    for number, entry in enumerate(trace.entries):
        if number % 50 == 0:
            progress(f"{number} of {len(trace.entries)} signatures")
        found = classify(profile, entry.signature)
        entries.append(_entry(entry, found, profile, known, namespaces, seconds[entry.id] / total, pricer))
    entries.sort(key=lambda e: (not e.is_gap, -e.share, e.op, e.id))
    return Inventory(
        device=profile.name,
        model=trace.model.source,
        entries=tuple(entries),
        roofline_seconds=sum(seconds.values()),
        blocks=blocks_of(trace, entries, seconds, profile, known, namespaces),
    )


def _entry(
    entry: TraceEntry,
    found: Classified,
    profile: DeviceProfile,
    known: tuple[Implementation, ...],
    namespaces: tuple[str, ...],
    share: float,
    pricer: Pricer,
) -> InventoryEntry:
    dtypes = leaf_dtypes(entry.signature)
    accepted: list[Implementation] = []
    verdict, reason = found.verdict, found.reason
    gap = found.verdict in GAP_VERDICTS
    if gap or found.verdict == "decomposes_with_sync":
        accepted = _options(entry, profile, known, namespaces, gap=gap)
        if accepted:
            verdict = "replaced"
            reason = f"{found.reason}; {accepted[0].identity} can stand in"
    effort, effort_why = effort_of(entry, found.leaves, profile) if gap else (None, "")
    return InventoryEntry(
        id=entry.id,
        op=entry.signature.op,
        dtypes=dtypes,
        shapes=shapes_text(entry.signature),
        verdict=verdict,
        device_verdict=found.verdict,
        reason=reason,
        evidence=found.evidence,
        leaves=found.leaves,
        options=tuple(str(one.identity) for one in accepted),
        calls=sum(entry.counts.values()),
        phases=tuple(entry.counts),
        module=entry.module,
        source=entry.source,
        share=share,
        effort=effort,
        effort_why=effort_why,
        replacements=pricer.ways(entry, accepted) if gap else (),
    )


def _options(
    entry: TraceEntry,
    profile: DeviceProfile,
    known: tuple[Implementation, ...],
    namespaces: tuple[str, ...],
    *,
    gap: bool,
) -> list[Implementation]:
    """Return what could stand in, best first. A reference only where nothing better does, and only for a gap."""
    accepted: list[Implementation] = []
    for one in candidates_for(entry.signature.op, known, namespaces):
        if one.kind == "reference" and (accepted or not gap):
            continue
        if judge(one, entry.signature, profile).accepted:
            accepted.append(one)
    return accepted


def roofline_seconds(entry: TraceEntry, profile: DeviceProfile) -> float:
    """Return the time of all calls of a signature on an ideal device of that bandwidth and those peak rates."""
    if entry.bytes == 0 and entry.flops == 0:
        return 0.0  # a view: nothing runs on the device
    rate = profile.tflops.get(_compute_dtype(entry), 0.0) or max(profile.tflops.values(), default=0.0)
    compute = entry.flops / (rate * 1e12) if rate else 0.0
    memory = entry.bytes / (profile.bandwidth_gb_s * 1e9) if profile.bandwidth_gb_s else 0.0
    return (max(compute, memory) + profile.launch_us * 1e-6) * sum(entry.counts.values())


def _compute_dtype(entry: TraceEntry) -> str:
    dtypes = leaf_dtypes(entry.signature)
    return next((dtype for dtype in dtypes if "float" in dtype), dtypes[0] if dtypes else "float32")

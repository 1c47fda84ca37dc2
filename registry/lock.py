"""Stage 3: from the gaps of an inventory to the lock, with every decision kept."""

from __future__ import annotations

from collections.abc import Iterable

from day0.devices.profile import DeviceProfile
from day0.implementation import Implementation
from day0.playbook import RegisterPlan
from day0.records import GAP_VERDICTS, Decision, Gap, Inventory, InventoryEntry, Lock, LockEntry, Signature, Trace
from day0.registry.fallback import cpu_fallback, refuse_fallback
from day0.registry.resolve import candidates_for, choose

__all__ = ["make_lock", "without_fallbacks"]

Group = tuple[str, tuple[str, ...]]


def make_lock(
    inventory: Inventory,
    trace: Trace,
    implementations: Iterable[Implementation],
    profile: DeviceProfile,
    plan: RegisterPlan,
    namespaces: tuple[str, ...],
) -> Lock:
    """Choose an implementation for every gap, and for composites that wait for the host where a better one exists.

    Calls of one operator with the same dtypes share one entry. A gap that nothing closes is kept as a gap.
    Raises Day0Error on a tie between two implementations.
    """
    known = without_fallbacks(implementations, plan)
    signatures = {entry.id: entry.signature for entry in trace.entries}
    entries, gaps = [], []
    for group, members in sorted(_groups(inventory).items()):
        calls = [signatures[member.id] for member in members]
        chosen, decisions = _choose(group[0], calls, members, known, profile, plan, namespaces)
        if chosen is not None:
            entries.append(_lock_entry(group, members, chosen, decisions))
        elif any(member.is_gap for member in members):
            gaps.append(_gap(group, members, decisions))
    return Lock(
        device=inventory.device,
        namespace=plan.namespace,
        model=trace.model.fingerprint,
        entries=tuple(entries),
        gaps=tuple(gaps),
    )


def without_fallbacks(implementations: Iterable[Implementation], plan: RegisterPlan) -> tuple[Implementation, ...]:
    """Leave out what the plan does not allow: everything, or the references."""
    if not plan.replacements:
        return ()
    return tuple(one for one in implementations if plan.fallback != "none" or one.kind != "reference")


def _groups(inventory: Inventory) -> dict[Group, list[InventoryEntry]]:
    groups: dict[Group, list[InventoryEntry]] = {}
    for entry in inventory.entries:
        if entry.device_verdict in GAP_VERDICTS or entry.device_verdict == "decomposes_with_sync":
            groups.setdefault((entry.op, entry.dtypes), []).append(entry)
    return groups


def _choose(
    op: str,
    calls: list[Signature],
    members: list[InventoryEntry],
    known: tuple[Implementation, ...],
    profile: DeviceProfile,
    plan: RegisterPlan,
    namespaces: tuple[str, ...],
) -> tuple[Implementation | None, tuple[Decision, ...]]:
    candidates = candidates_for(op, known, namespaces)
    if not any(member.is_gap for member in members):
        # It runs, if slowly: only something made to be better may take its place.
        candidates = tuple(one for one in candidates if one.kind in ("kernel", "decomposition"))
    chosen, decisions = choose(op, calls, candidates, profile)
    if chosen is not None or not any(member.is_gap for member in members):
        return chosen, decisions
    if not plan.replacements:
        return None, (*decisions, Decision(candidate="any", accepted=False, reason="replacements are switched off"))
    if plan.fallback != "cpu":
        refused = Decision(candidate="cpu_fallback", accepted=False, reason=f"the plan says fallback: {plan.fallback}")
        return None, (*decisions, refused)
    return _fall_back(op, calls, decisions)


def _fall_back(
    op: str, calls: list[Signature], decisions: tuple[Decision, ...]
) -> tuple[Implementation | None, tuple[Decision, ...]]:
    one = cpu_fallback(op)
    reasons = [reason for call in calls if (reason := refuse_fallback(call))]
    reason = reasons[0] if reasons else one.why
    decision = Decision(candidate=str(one.identity), accepted=not reasons, reason=reason)
    return (None if reasons else one), (*decisions, decision)


def _lock_entry(
    group: Group, members: list[InventoryEntry], chosen: Implementation, decisions: tuple[Decision, ...]
) -> LockEntry:
    return LockEntry(
        operator=group[0],
        dtypes=group[1],
        signatures=tuple(sorted(member.id for member in members)),
        identity=chosen.identity,
        kind=chosen.kind,
        source_hash=chosen.source_hash,
        origin=chosen.origin,
        decisions=decisions,
    )


def _gap(group: Group, members: list[InventoryEntry], decisions: tuple[Decision, ...]) -> Gap:
    return Gap(
        operator=group[0],
        dtypes=group[1],
        signatures=tuple(sorted(member.id for member in members)),
        calls=sum(member.calls for member in members),
        module=members[0].module,
        reason=members[0].reason,
        decisions=decisions,
    )

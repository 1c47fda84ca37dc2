"""Stage 3: from the gaps of an inventory to the lock, with every decision kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from day0.devices.profile import DeviceProfile
from day0.errors import Day0Error, near_names
from day0.implementation import Implementation
from day0.playbook import RegisterPlan
from day0.records import GAP_VERDICTS, Decision, Gap, Inventory, InventoryEntry, Lock, LockEntry, Signature, Trace
from day0.registry.ahead import ambiguities, holes
from day0.registry.fallback import cpu_fallback, refuse_fallback
from day0.registry.resolve import candidates_for, choose

__all__ = ["asked_for", "entry_of", "make_lock", "refuse_unknown_replacements", "upgrade", "without_fallbacks"]

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

    Calls of one operator with the same dtypes share one entry. A gap that nothing closes is kept as a gap, and so is
    an operator that the plan asks to replace and that nothing replaces.
    Raises Day0Error on a tie between two implementations, with a strict plan also where calls that were not traced would
    be one, and for an operator to replace that the model never calls.
    """
    known = without_fallbacks(implementations, plan)
    refuse_unknown_replacements(inventory, plan)
    signatures = {entry.id: entry.signature for entry in trace.entries}
    entries, gaps = [], []
    looked_at: dict[str, list[Signature]] = {}
    for group, members in sorted(_groups(inventory, plan).items()):
        calls = [signatures[member.id] for member in members]
        looked_at.setdefault(group[0], []).extend(calls)
        chosen, decisions = _choose(group[0], calls, members, known, profile, plan, namespaces)
        if chosen is not None:
            entries.append(entry_of(group, tuple(sorted(member.id for member in members)), chosen, decisions))
        elif any(member.is_gap for member in members) or asked_for(group[0], plan):
            gaps.append(_gap(group, members, decisions))
    return Lock(
        device=inventory.device,
        namespace=plan.namespace,
        model=trace.model.fingerprint,
        entries=tuple(entries),
        gaps=tuple(gaps),
        ambiguities=ambiguities(looked_at, known, namespaces, strict=plan.strict),
        holes=holes(looked_at, [one for one in known if one.namespace in namespaces], profile.torch_device),
    )


def without_fallbacks(implementations: Iterable[Implementation], plan: RegisterPlan) -> tuple[Implementation, ...]:
    """Leave out what the plan does not allow: everything, or the references."""
    if not plan.replacements:
        return ()
    return tuple(one for one in implementations if plan.fallback != "none" or one.kind != "reference")


def upgrade(before: Lock, after: Lock, operators: Sequence[str]) -> Lock:
    """Take the choices for some operators from a new lock and keep all others as they were.

    Raises Day0Error for an operator that neither lock names, and where the two are for different devices or models.
    """
    if (before.device, before.model) != (after.device, after.model):
        what = "the lock is for another device or model, so no part of it can be kept"
        raise Day0Error("--upgrade", what, hint="leave --upgrade away")
    locks = (before, after)
    names = {row.operator for lock in locks for row in lock.entries} | {
        gap.operator for lock in locks for gap in lock.gaps
    }
    for operator in operators:
        if not any(_names(operator, name) for name in names):
            hint = near_names(operator, tuple(sorted(names))) or "the lock's operators: " + ", ".join(sorted(names))
            raise Day0Error(f"--upgrade {operator}", "neither the lock nor what was chosen now has it", hint=hint)

    def new(name: str) -> bool:
        return any(_names(operator, name) for operator in operators)

    entries = [row for row in before.entries if not new(row.operator)] + [
        row for row in after.entries if new(row.operator)
    ]
    gaps = [row for row in before.gaps if not new(row.operator)] + [row for row in after.gaps if new(row.operator)]
    return after.model_copy(
        update={
            "entries": tuple(sorted(entries, key=lambda row: (row.operator, row.dtypes))),
            "gaps": tuple(sorted(gaps, key=lambda row: (row.operator, row.dtypes))),
        }
    )


def refuse_unknown_replacements(inventory: Inventory, plan: RegisterPlan) -> None:
    """Raise Day0Error for an operator that the plan asks to replace and that the model never calls."""
    called = tuple(sorted({entry.op for entry in inventory.entries}))
    for asked in plan.replace:
        if not any(_names(asked, op) for op in called):
            hint = near_names(asked, called) or "the operators that the model calls: `day0 inventory`"
            raise Day0Error(f"register.replace: {asked}", "the model never calls this operator", hint=hint)


def _names(asked: str, op: str) -> bool:
    """Say whether a name means an operator: itself, or all overloads of it."""
    return asked in (op, op.partition(".")[0])


def asked_for(op: str, plan: RegisterPlan) -> bool:
    """Say whether the plan asks to replace an operator, though the device may have it."""
    return any(_names(asked, op) for asked in plan.replace)


def _groups(inventory: Inventory, plan: RegisterPlan) -> dict[Group, list[InventoryEntry]]:
    groups: dict[Group, list[InventoryEntry]] = {}
    for entry in inventory.entries:
        waits = entry.device_verdict in GAP_VERDICTS or entry.device_verdict == "decomposes_with_sync"
        if waits or asked_for(entry.op, plan):
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
        # It runs: only something made to be better may take its place.
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


def entry_of(
    group: Group, signatures: tuple[str, ...], chosen: Implementation, decisions: tuple[Decision, ...]
) -> LockEntry:
    """Return the entry of an operator and its dtypes for what was chosen."""
    return LockEntry(
        operator=group[0],
        dtypes=group[1],
        signatures=signatures,
        identity=chosen.identity,
        kind=chosen.kind,
        source_hash=chosen.source_hash,
        origin=chosen.origin,
        decisions=decisions,
        distribution=chosen.distribution,
    )


def _gap(group: Group, members: list[InventoryEntry], decisions: tuple[Decision, ...]) -> Gap:
    asked = "the plan asks to replace it, and nothing that is there does"
    reason = members[0].reason if any(member.is_gap for member in members) else asked
    return Gap(
        operator=group[0],
        dtypes=group[1],
        signatures=tuple(sorted(member.id for member in members)),
        calls=sum(member.calls for member in members),
        module=members[0].module,
        reason=reason,
        decisions=decisions,
    )

"""Choose implementations. Pure: the same implementations in any order give the same choice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from packaging.version import InvalidVersion, Version

from day0.devices.profile import DeviceProfile
from day0.errors import Day0Error
from day0.implementation import Constraints, Implementation
from day0.records import Decision, Signature
from day0.reference_ops.signatures import shapes_text
from day0.registry.constraints import refuse_by_predicate, refuse_call
from day0.registry.contract import refuse_overload
from day0.registry.leaves import refuse_leaves
from day0.registry.schemas import call_of

__all__ = ["candidates_for", "choose", "judge", "refusal", "version_key"]

UNCONSTRAINED = Constraints()


def candidates_for(
    op: str, implementations: Iterable[Implementation], namespaces: Sequence[str]
) -> tuple[Implementation, ...]:
    """Return the implementations of an operator on the search path, in the order in which they are tried.

    Namespace first (most specific), then the declared rank, then the id, then the newer version.
    """
    name = op.partition(".")[0]
    mine = [one for one in implementations if one.operator in (op, name) and one.namespace in namespaces]
    by_version = sorted(mine, key=version_key, reverse=True)
    return tuple(
        sorted(by_version, key=lambda one: (namespaces.index(one.namespace), one.rank, one.id, one.operator != op))
    )


def version_key(one: Implementation) -> tuple[bool, Version, str, str]:
    """Return what versions of one id are ordered by: final releases above pre-releases, then as `packaging` says.

    The text comes last, so that the order of registration never counts.
    """
    try:
        version = Version(one.version)
    except InvalidVersion:
        raise Day0Error(
            f"{one.origin}: {one.identity}", f"'{one.version}' is not a version", hint="write it like 1.0 or 2.1.3"
        ) from None
    return not version.is_prerelease, version, str(one.identity), one.source_hash


def judge(one: Implementation, signature: Signature, profile: DeviceProfile) -> Decision:
    """Say whether an implementation takes a call on a device, and why not.

    A reference knows nothing of devices, so its leaves are looked up; a kernel's author has said where it runs.
    """
    reason = refusal(one, signature, profile.torch_device)
    if not reason and one.kind == "reference":
        reason = refuse_leaves(one, signature, profile)
    return Decision(candidate=str(one.identity), accepted=not reason, reason=reason or one.why)


def refusal(one: Implementation, signature: Signature, device_type: str) -> str:
    """Say why what an implementation declares rules a call out, or return an empty text.

    In this order: devices, contract, constraints, its own predicate.
    """
    if "*" not in one.devices and device_type not in one.devices:
        return f"runs on {', '.join(one.devices)}, not on {device_type}"
    reason = refuse_overload(one, signature.op)
    if reason or (one.constraints == UNCONSTRAINED and one.predicate is None):
        return reason
    call = call_of(signature, device_type)
    reason = refuse_call(one.constraints, call)
    if reason or one.predicate is None:
        return reason
    return refuse_by_predicate(one.predicate, call)


def choose(
    op: str, signatures: Sequence[Signature], candidates: Sequence[Implementation], profile: DeviceProfile
) -> tuple[Implementation | None, tuple[Decision, ...]]:
    """Take the first candidate that accepts every call; return it with the decisions on all of them.

    Raises Day0Error if two different implementations stand at the same place of the order.
    """
    decisions: list[Decision] = []
    chosen: Implementation | None = None
    for one in candidates:
        if chosen is not None and one.kind == "reference":
            # Looking up its leaves costs time, and a reference is never better than what was chosen.
            reason = f"{chosen.identity} comes first"
            decisions.append(Decision(candidate=str(one.identity), accepted=False, reason=reason))
            continue
        decision = _judge_all(one, signatures, profile)
        if chosen is None and decision.accepted:
            chosen = one
        elif chosen is not None and decision.accepted:
            _refuse_tie(op, chosen, one)
            decision = Decision(candidate=decision.candidate, accepted=False, reason=f"{chosen.identity} comes first")
        decisions.append(decision)
    return chosen, tuple(decisions)


def _judge_all(one: Implementation, signatures: Sequence[Signature], profile: DeviceProfile) -> Decision:
    decision = Decision(candidate=str(one.identity), accepted=False, reason="no call to judge")
    for signature in signatures:
        decision = judge(one, signature, profile)
        if not decision.accepted:
            return decision.model_copy(update={"reason": f"{decision.reason} ({shapes_text(signature)})"})
    return decision


def _refuse_tie(op: str, first: Implementation, second: Implementation) -> None:
    if (first.namespace, first.rank) != (second.namespace, second.rank):
        return
    if (first.operator, first.id) == (second.operator, second.id):
        return  # versions of one thing: the newer one was tried first
    raise Day0Error(
        f"registry: {op}",
        f"two implementations have rank {first.rank} in namespace {first.namespace}, and both accept",
        facts=tuple(sorted(f"{one.identity} from {one.origin}" for one in (first, second))),
        hint="give one of them a lower rank, or constraints that tell them apart",
    )

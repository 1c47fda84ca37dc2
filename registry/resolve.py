"""Choose implementations. Pure: the same implementations in any order give the same choice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from packaging.version import InvalidVersion, Version

from day0.devices.leaves import leaf_dtypes, leaf_ranks
from day0.devices.profile import DeviceProfile
from day0.errors import Day0Error
from day0.implementation import Implementation
from day0.records import Decision, Signature
from day0.reference_ops.signatures import shapes_text, tensor_values
from day0.registry.leaves import refuse_leaves

__all__ = ["candidates_for", "choose", "judge"]


def candidates_for(
    op: str, implementations: Iterable[Implementation], namespaces: Sequence[str]
) -> tuple[Implementation, ...]:
    """Return the implementations of an operator on the search path, in the order in which they are tried.

    Namespace first (most specific), then the declared rank, then the newer version.
    """
    name = op.partition(".")[0]
    mine = [one for one in implementations if one.operator in (op, name) and one.namespace in namespaces]
    by_version = sorted(mine, key=lambda one: _version(one), reverse=True)
    return tuple(sorted(by_version, key=lambda one: (namespaces.index(one.namespace), one.rank, one.id)))


def _version(one: Implementation) -> Version:
    try:
        return Version(one.version)
    except InvalidVersion:
        raise Day0Error(
            f"{one.origin}: {one.identity}", f"'{one.version}' is not a version", hint="write it like 1.0 or 2.1.3"
        ) from None


def judge(one: Implementation, signature: Signature, profile: DeviceProfile) -> Decision:
    """Say whether an implementation takes a call on a device, and why not.

    A reference knows nothing of devices, so its leaves are looked up; a kernel's author has said where it runs.
    """
    reason = _refusal(one, signature, profile.torch_device)
    if not reason and one.kind == "reference":
        reason = refuse_leaves(one, signature, profile)
    return Decision(candidate=str(one.identity), accepted=not reason, reason=reason or one.why)


def _refusal(one: Implementation, signature: Signature, device_type: str) -> str:
    if "*" not in one.devices and device_type not in one.devices:
        return f"runs on {', '.join(one.devices)}, not on {device_type}"
    limits, dtypes = one.constraints, leaf_dtypes(signature)
    if limits.dtypes and not set(dtypes) <= limits.dtypes:
        return f"takes {', '.join(sorted(limits.dtypes))}, not {', '.join(sorted(set(dtypes) - limits.dtypes))}"
    if limits.first_dtype and (not dtypes or dtypes[0] not in limits.first_dtype):
        return f"its first tensor must be {', '.join(sorted(limits.first_dtype))}, not {dtypes[0] if dtypes else '-'}"
    ranks = leaf_ranks(signature)
    if limits.max_rank is not None and any(rank > limits.max_rank for rank in ranks):
        return f"takes at most {limits.max_rank} dimensions, not {max(ranks)}"
    return _divisibility(one, signature)


def _divisibility(one: Implementation, signature: Signature) -> str:
    tensors = list(tensor_values(signature))
    for position, divisor in sorted(one.constraints.multiple_of.items()):
        if position < len(tensors) and tensors[position].shape and tensors[position].shape[-1] % divisor:
            size = tensors[position].shape[-1]
            return f"the last dimension of tensor {position} must be a multiple of {divisor}, not {size}"
    return ""


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
    if (first.namespace, first.rank) != (second.namespace, second.rank) or first.id == second.id:
        return
    raise Day0Error(
        f"registry: {op}",
        f"two implementations have rank {first.rank} in namespace {first.namespace}, and both accept",
        facts=tuple(sorted(f"{one.identity} from {one.origin}" for one in (first, second))),
        hint="give one of them a lower rank, or constraints that tell them apart",
    )

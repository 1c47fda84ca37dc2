"""A simulated device with a lock for the calls that it cannot run itself: where kernels are made faulty and checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from day0.devices.faults.observe import lent_kernels
from day0.devices.leaves import leaf_dtypes
from day0.devices.open import open_torch_device
from day0.devices.profile import DeviceProfile
from day0.devices.verdict import classify
from day0.implementation import Implementation
from day0.records import GAP_VERDICTS, Gap, Lock, LockEntry, Signature
from day0.reference_ops.signatures import signature_id
from day0.registry.dispatch import ActiveLock, activate
from day0.registry.fallback import cpu_fallback, refuse_fallback
from day0.registry.resolve import candidates_for, choose

__all__ = ["NAMESPACES", "Bench", "lock_for", "lock_with", "open_bench"]

NAMESPACES = ("kimi/k3.1", "kimi", "base")
Group = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What a case needs to run."""

    device: torch.device
    active: ActiveLock
    lock: Lock


@contextmanager
def open_bench(profile: DeviceProfile, lock: Lock, implementations: Iterable[Implementation]) -> Iterator[Bench]:
    """Open the device with kernels for our operators, and let the lock be active while this lasts.

    Those kernels are the references: what a vendor would bring, right but for what is planted.
    """
    device = open_torch_device(profile)
    with lent_kernels(), activate(lock, device, implementations) as active:
        yield Bench(device=device, active=active, lock=lock)


def lock_for(
    signatures: Sequence[Signature], profile: DeviceProfile, implementations: Sequence[Implementation]
) -> Lock:
    """Choose for what the device lacks as the register stage does: kernels, then references, then the CPU.

    Of our own operators those that a kernel is there for: the bench lends the device references for the others. What
    is lent cannot stand below what is locked, since torch sends such a call back to where it came from.
    """
    kernels = {one.operator for one in implementations if one.kind in ("kernel", "decomposition")}
    lacking = [one for one in signatures if _is_locked(one, profile, kernels)]
    entries, gaps = [], []
    for (op, dtypes), calls in _groups(lacking).items():
        chosen, _ = choose(op, calls, candidates_for(op, implementations, NAMESPACES), profile)
        if chosen is None and not any(refuse_fallback(one) for one in calls):
            chosen = cpu_fallback(op)
        ids = tuple(sorted(signature_id(one) for one in calls))
        if chosen is not None:
            entries.append(_entry(op, dtypes, ids, chosen))
        else:
            gaps.append(
                Gap(operator=op, dtypes=dtypes, signatures=ids, calls=0, module="", reason="nothing", decisions=())
            )
    return _lock(profile, tuple(entries), tuple(gaps))


def _is_locked(signature: Signature, profile: DeviceProfile, kernels: set[str]) -> bool:
    if signature.op.startswith("day0::"):
        return signature.op in kernels
    return classify(profile, signature).verdict in GAP_VERDICTS


def lock_with(one: Implementation, signatures: Sequence[Signature], profile: DeviceProfile) -> Lock:
    """Return a lock of one implementation alone, for calls that it takes."""
    entries = [
        _entry(op, dtypes, tuple(sorted(signature_id(call) for call in calls)), one)
        for (op, dtypes), calls in _groups(signatures).items()
    ]
    return _lock(profile, tuple(entries), ())


def _groups(signatures: Sequence[Signature]) -> dict[Group, list[Signature]]:
    groups: dict[Group, list[Signature]] = {}
    for one in signatures:
        groups.setdefault((one.op, leaf_dtypes(one)), []).append(one)
    return groups


def _lock(profile: DeviceProfile, entries: tuple[LockEntry, ...], gaps: tuple[Gap, ...]) -> Lock:
    return Lock(device=profile.name, namespace=NAMESPACES[0], model="", entries=entries, gaps=gaps)


def _entry(op: str, dtypes: tuple[str, ...], ids: tuple[str, ...], chosen: Implementation) -> LockEntry:
    return LockEntry(
        operator=op,
        dtypes=dtypes,
        signatures=ids,
        identity=chosen.identity,
        kind=chosen.kind,
        source_hash=chosen.source_hash,
        origin=chosen.origin,
        decisions=(),
        distribution=chosen.distribution,
    )

"""Which implementations stand in on ranks for operators of day0 that the device has no kernel for.

A run folder's lock was made for the shapes of the whole model; here the calls are those of a rank's own part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from day0.devices.leaves import leaf_dtypes
from day0.devices.profile import DeviceProfile
from day0.errors import Day0Error
from day0.implementation import Implementation
from day0.playbook import RegisterPlan
from day0.records import Lock, LockEntry, Signature
from day0.registry.collect import collect
from day0.registry.lock import asked_for, entry_of
from day0.registry.namespaces import load_parents, search_path
from day0.registry.resolve import candidates_for, choose

__all__ = ["implementations_of", "lock_of", "words_of"]


def implementations_of(plan: RegisterPlan) -> tuple[Implementation, ...]:
    """Return what could stand in: what ships with day0, what is installed, and the files that the plan names."""
    return collect(tuple(Path(name) for name in plan.load), without=plan.without)


def lock_of(
    calls: Iterable[Signature], profile: DeviceProfile, plan: RegisterPlan, model: str, known: Iterable[Implementation]
) -> Lock | None:
    """Choose for every operator of day0 that a rank calls and the device lacks, or the plan asks to replace.

    None where nothing is needed. Raises Day0Error for an operator that nothing takes.
    """
    key = torch._C._dispatch_key_for_device(profile.torch_device)
    groups: dict[tuple[str, tuple[str, ...]], list[Signature]] = defaultdict(list)
    for call in calls:
        if asked_for(call.op, plan) or not torch._C._dispatch_has_kernel_for_dispatch_key(call.op, key):
            groups[call.op, leaf_dtypes(call)].append(call)
    if not groups:
        return None
    files = tuple(Path(name) for name in plan.load)
    namespaces = search_path(plan.namespace, load_parents(files, without=plan.without))
    known = tuple(known)
    entries = tuple(
        _entry(op, dtypes, found, known, namespaces, profile) for (op, dtypes), found in sorted(groups.items())
    )
    return Lock(device=profile.name, namespace=plan.namespace, model=model, entries=entries)


def _entry(
    op: str,
    dtypes: tuple[str, ...],
    calls: list[Signature],
    known: tuple[Implementation, ...],
    namespaces: tuple[str, ...],
    profile: DeviceProfile,
) -> LockEntry:
    chosen, decisions = choose(op, calls, candidates_for(op, known, namespaces), profile)
    if chosen is None:
        raise Day0Error(
            f"ranks: {op}",
            f"device {profile.name} has no kernel for it, and nothing that is registered takes the calls of a rank",
            facts=tuple(f"{one.candidate}: {one.reason}" for one in decisions),
            hint="register one that does (`day0 ops new`), or take --device cpu",
        )
    return entry_of((op, dtypes), (), chosen, decisions)


def words_of(locks: Mapping[int, Lock | None]) -> tuple[str, ...]:
    """Say which implementations stood in, by number of ranks, and once where it is the same for all."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for number, lock in locks.items():
        # One operator may have an entry for each tuple of dtypes.
        chosen = sorted({_name(one) for one in lock.entries}) if lock is not None else []
        ranks[", ".join(chosen)].append(number)
    some = len(ranks) > 1
    return tuple(
        "registered for this device" + (f", on {' and '.join(map(str, numbers))} ranks" if some else "") + f": {text}"
        for text, numbers in ranks.items()
        if text
    )


def _name(entry: LockEntry) -> str:
    one = entry.identity
    return f"{entry.operator} {one.namespace}:{one.id}=={one.version}"

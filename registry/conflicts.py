"""What can be wrong between two sources of implementations, each with who is on either side. Errors, never asserts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from packaging.version import InvalidVersion, Version

from day0.errors import Day0Error, near_names
from day0.implementation import Implementation

__all__ = [
    "Claim",
    "Conflict",
    "Kind",
    "Owner",
    "find_key_taken",
    "find_same_identity",
    "find_shared_targets",
    "find_unknown_targets",
    "owner_of",
    "refuse",
]

Kind = Literal["same_identity", "overlap", "shared_target", "key_taken", "unknown_target", "contract_drift"]


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Owner:
    """One side of a conflict: what it is and where it stands."""

    what: str
    """Identity of an implementation, or what else it calls itself."""
    origin: str
    """`file:line`, or distribution with version, module file and line."""
    source_hash: str = ""

    def __str__(self) -> str:
        digest = f"  {self.source_hash[:19]}" if self.source_hash else ""
        return f"{self.what} from {self.origin}{digest}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Conflict:
    """Something that must not be, with both owners; the same whatever the order in which they came."""

    kind: Kind
    where: str
    what: str
    owners: tuple[Owner, ...]
    witness: str = ""
    """A call on which it shows, where there is one."""
    hint: str

    def error(self) -> Day0Error:
        """Return it as the error that stops a command."""
        shown = (f"such a call: {self.witness}",) if self.witness else ()
        return Day0Error(self.where, self.what, facts=(*map(str, sorted(self.owners)), *shown), hint=self.hint)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """An implementation that wants to be what an engine calls under one name."""

    engine: str
    target: str
    """The engine's own name: of a class, an operator, a hook."""
    owner: Owner


def owner_of(one: Implementation) -> Owner:
    """Return an implementation as one side of a conflict."""
    return Owner(what=str(one.identity), origin=one.origin, source_hash=one.source_hash)


def refuse(conflicts: Iterable[Conflict]) -> None:
    """Raise the first conflict, in an order that does not depend on how they were found."""
    found = sorted(conflicts, key=lambda one: (one.kind, one.where, one.owners))
    if found:
        raise found[0].error()


def find_same_identity(implementations: Iterable[Implementation]) -> tuple[Conflict, ...]:
    """Find identities that stand for two different contents, and versions that are one and are written differently."""
    groups: dict[tuple[object, ...], list[Implementation]] = {}
    for one in implementations:
        groups.setdefault((one.operator, one.contract, one.namespace, one.id, _version(one)), []).append(one)
    found = []
    for members in groups.values():
        first = min(members, key=lambda one: owner_of(one))
        other = next((one for one in sorted(members, key=owner_of) if not _same(first, one)), None)
        if other is not None:
            found.append(_same_identity(first, other))
    return tuple(sorted(found, key=lambda one: one.where))


def _version(one: Implementation) -> object:
    try:
        return Version(one.version)
    except InvalidVersion:
        return one.version  # refused by who orders versions


def _same(one: Implementation, other: Implementation) -> bool:
    """Say whether two are one: the same name, source and declarations, wherever each was found."""
    return _content(one) == _content(other)


def _content(one: Implementation) -> tuple[object, ...]:
    return str(one.identity), one.source_hash, one.kind, one.devices, one.rank, one.constraints, one.predicate is None


def _same_identity(first: Implementation, other: Implementation) -> Conflict:
    if first.version != other.version:
        what = f"versions {first.version} and {other.version} are the same version, written differently"
    elif first.source_hash != other.source_hash:
        what = "two implementations claim this identity with different content"
    else:
        what = "two implementations claim this identity with one source and different declarations"
    return Conflict(
        kind="same_identity",
        where=f"registry: {first.identity}",
        what=what,
        owners=tuple(sorted((owner_of(first), owner_of(other)))),
        hint="give one of them another id, version or namespace",
    )


def find_shared_targets(claims: Iterable[Claim]) -> tuple[Conflict, ...]:
    """Find targets of an engine with more than one owner: in one process only one of them would ever run."""
    groups: dict[tuple[str, str], set[Owner]] = {}
    for one in claims:
        groups.setdefault((one.engine, one.target), set()).add(one.owner)
    return tuple(
        Conflict(
            kind="shared_target",
            where=f"{engine}: {target}",
            what="two implementations want to be what the engine calls here",
            owners=tuple(sorted(owners)),
            hint="lock one of them, or give the other to another target",
        )
        for (engine, target), owners in sorted(groups.items())
        if len(owners) > 1
    )


def find_unknown_targets(
    claims: Iterable[Claim], known: Collection[str], *, engine_version: str
) -> tuple[Conflict, ...]:
    """Find claims on names that the installed engine does not have: it would take them and never call them."""
    names = tuple(sorted(known))
    return tuple(
        Conflict(
            kind="unknown_target",
            where=f"{one.engine} {engine_version}: {one.target}",
            what=f"the engine has no '{one.target}', so it would never be called",
            owners=(one.owner,),
            hint=near_names(one.target, names) or f"it has: {', '.join(names[:12])}",
        )
        for one in sorted(claims, key=lambda one: (one.engine, one.target, one.owner))
        if one.target not in known
    )


def find_key_taken(op: str, key: str) -> tuple[Conflict, ...]:
    """Find who besides torch and day0 has put a kernel at an operator and dispatch key, as torch's dispatcher says."""
    from day0.registry.dispatcher import foreign_kernels  # asks torch; what stands above is plain data

    taken = foreign_kernels(op, key)
    if not taken:
        return ()
    return (
        Conflict(
            kind="key_taken",
            where=f"torch: {op} at {key}",
            what="another library has put its kernel there",
            owners=tuple(sorted(Owner(what=one.what, origin=one.where) for one in taken)),
            hint="leave that library out, or take the operator out of the lock: one of the two would be hidden",
        ),
    )

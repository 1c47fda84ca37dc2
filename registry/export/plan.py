"""Which entry of a lock goes where in an engine, and which cannot go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from day0.errors import Day0Error, near_names
from day0.implementation import Implementation
from day0.records import Lock, LockEntry
from day0.registry.export.adapters import Found
from day0.registry.export.runtime.spec import Target

__all__ = ["ExportPlan", "Options", "Refusal", "Route", "make_plan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the user allows."""

    skip: tuple[str, ...] = ()
    """Operators that stay with the engine."""
    allow_unverified: bool = False
    allow_reference: bool = False
    models: tuple[str, ...] = ()
    """Model types or architectures that the plugin serves; empty: every model in the process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """One lock entry and the targets that will call it; no targets for an aten operator, which torch calls."""

    entry: LockEntry
    implementation: Implementation
    targets: tuple[Target, ...]

    @property
    def is_aten(self) -> bool:
        """Whether it goes in as an override at a dispatch key of torch."""
        return not self.targets


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """One lock entry that is not exported, and why."""

    operator: str
    identity: str
    reason: str
    hint: str
    asked: bool = False
    """The user said so with --skip: no error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportPlan:
    """Everything that the wheel is made from."""

    found: Found
    lock: Lock
    options: Options
    routes: tuple[Route, ...]
    refusals: tuple[Refusal, ...]

    @property
    def targets(self) -> tuple[Target, ...]:
        """Every target that some route goes through, once, in the adapter's order."""
        used = {target.name for route in self.routes for target in route.targets}
        return tuple(target for target in self.found.adapter.targets if target.name in used)

    def raise_refusals(self) -> None:
        """Raise Day0Error naming every entry that was refused and that --skip does not list."""
        bad = [one for one in self.refusals if not one.asked]
        if bad:
            raise Day0Error(
                f"export to {self.found.adapter.engine}",
                f"{len(bad)} of {len(self.lock.entries)} entries of the lock cannot go in",
                facts=tuple(f"{one.identity}: {one.reason}" for one in bad),
                hint=bad[0].hint,
            )
        if not self.routes:
            raise Day0Error(
                f"export to {self.found.adapter.engine}",
                "no entry of the lock is left to export",
                hint="a lock without entries needs no plugin; look at it with `day0 register --explain`",
            )


def make_plan(lock: Lock, implementations: Iterable[Implementation], found: Found, options: Options) -> ExportPlan:
    """Route every entry of a lock, or say why it cannot be routed.

    Raises Day0Error for a --skip that names no operator of the lock. Refusals are values: `raise_refusals` raises.
    """
    names = tuple(sorted({entry.operator for entry in lock.entries}))
    for name in options.skip:
        if name not in names:
            hint = near_names(name, names) or f"the lock has {', '.join(names) or 'no entries'}"
            raise Day0Error("--skip", f"the lock has no operator '{name}'", hint=hint)
    known = {str(one.identity): one for one in implementations}
    routes: list[Route] = []
    refusals: list[Refusal] = []
    for entry in lock.entries:
        made = _route(entry, lock.device, known, found, options)
        if isinstance(made, Route):
            routes.append(made)
        else:
            refusals.append(made)
    return ExportPlan(found=found, lock=lock, options=options, routes=tuple(routes), refusals=tuple(refusals))


def _unverified(entry: LockEntry, device: str) -> str:
    found = entry.verified
    if found is None:
        return "no numerics report has verified it"
    if found.source_hash != entry.source_hash:
        return f"what was verified is another source, {found.source_hash[:19]}, not {entry.source_hash[:19]}"
    if found.device != device:
        return f"it was verified on {found.device}, and the lock is for {device}"
    return ""


def _route(
    entry: LockEntry, lock_device: str, known: dict[str, Implementation], found: Found, options: Options
) -> Route | Refusal:
    def refuse(reason: str, hint: str, *, asked: bool = False) -> Refusal:
        return Refusal(operator=entry.operator, identity=str(entry.identity), reason=reason, hint=hint, asked=asked)

    skip = f"leave it to the engine with --skip {entry.operator}"
    if entry.operator in options.skip:
        return refuse("left to the engine by --skip", "", asked=True)
    if entry.kind == "cpu_fallback":
        return refuse("a fallback to the CPU is no implementation to serve with", skip)
    if entry.kind == "reference" and not options.allow_reference:
        return refuse("it is the reference, which nobody made fast", f"allow it with --allow-reference, or {skip}")
    unverified = _unverified(entry, lock_device)
    if unverified and not options.allow_unverified:
        return refuse(unverified, "run `day0 check`, or say --allow-unverified")
    one = known.get(str(entry.identity))
    if one is None:
        return refuse(f"it is not there; it came from {entry.origin}", "give its file with --with")
    if one.source_hash != entry.source_hash:
        return refuse(
            f"its source has changed since it was locked: {entry.source_hash[:19]} then, {one.source_hash[:19]} in "
            f"{one.origin} now",
            "lock again with `day0 register`, then check again",
        )
    targets = tuple(target for target in found.adapter.targets if entry.operator in target.operators)
    if not targets and not entry.operator.startswith("aten::"):
        where = found.adapter.engine
        return refuse(f"nothing in {where} {found.adapter.tested} is a target for {entry.operator}", skip)
    return Route(entry=entry, implementation=one, targets=targets)

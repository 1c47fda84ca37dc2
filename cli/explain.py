"""`day0 ops explain`: why a lock holds what it holds, every candidate in order, from the decisions kept in it."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from day0.cli.rundir import RunFolder
from day0.cli.talk import Talk
from day0.errors import Day0Error, ExitCode, near_names
from day0.records import Decision, Gap, Lock, LockEntry

__all__ = ["Candidate", "Explained", "explain", "ops_explain"]

Outcome = Literal["chosen", "comes later", "refused"]
LAST_RESORTS = {"reference": "the reference", "cpu_fallback": "the CPU"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One candidate in the order in which it was tried."""

    name: str
    """Namespace, id and version."""
    outcome: Outcome
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """How one operator with one tuple of dtypes came by its implementation, or by none."""

    operator: str
    dtypes: tuple[str, ...]
    signatures: int
    chosen: str
    """Empty for a gap."""
    kind: str
    origin: str
    candidates: tuple[Candidate, ...]
    why: str
    """One sentence, where a reference or the CPU runs, or nothing."""


def ops_explain(*, name: str | None, run: Path, json: bool) -> int:
    """`day0 ops explain`."""
    from day0.cli import show_explain

    lock = RunFolder(run).need(Lock).record
    found = explain(lock, name)
    if json:
        print(jsonlib.dumps([asdict(one) for one in found], indent=1))
    else:
        show_explain.explained(Talk(), lock, found)
    return int(ExitCode.OK)


def explain(lock: Lock, name: str | None = None) -> tuple[Explained, ...]:
    """Say for each entry and gap of a lock, or for those of one operator, what was tried and why it was not taken.

    `name` is an operator with or without its overload. Raises Day0Error for one that the lock does not name.
    """
    both: list[LockEntry | Gap] = [*lock.entries, *lock.gaps]
    everything = sorted(both, key=lambda one: (one.operator, one.dtypes))
    wanted = [one for one in everything if name in (None, one.operator, one.operator.partition(".")[0])]
    if not wanted and name is not None:
        known = tuple(sorted({one.operator for one in everything}))
        hint = near_names(name, known) or f"it decides on: {', '.join(known) or 'nothing'}"
        raise Day0Error(f"lock of {lock.device}", f"nothing was decided on '{name}': it is no gap there", hint=hint)
    return tuple(_explained(one) for one in wanted)


def _explained(one: LockEntry | Gap) -> Explained:
    taken = str(one.identity) if isinstance(one, LockEntry) else ""
    candidates = tuple(_candidate(decision, taken) for decision in one.decisions)
    return Explained(
        operator=one.operator,
        dtypes=one.dtypes,
        signatures=len(one.signatures),
        chosen=_short(taken),
        kind=one.kind if isinstance(one, LockEntry) else "gap",
        origin=one.origin if isinstance(one, LockEntry) else "",
        candidates=candidates,
        why=_why(one, candidates),
    )


def _candidate(decision: Decision, taken: str) -> Candidate:
    if decision.candidate == taken:
        return Candidate(name=_short(decision.candidate), outcome="chosen", reason=decision.reason)
    later = bool(taken) and decision.reason == f"{taken} comes first"
    reason = decision.reason
    if later:
        asked = "/reference==" not in decision.candidate.replace(":", "/")
        reason = "takes these calls too" if asked else "not asked: a reference is never better"
    return Candidate(name=_short(decision.candidate), outcome="comes later" if later else "refused", reason=reason)


def _short(identity: str) -> str:
    """Drop operator and contract, which stand above."""
    return identity.rpartition(" ")[2]


def _why(one: LockEntry | Gap, candidates: tuple[Candidate, ...]) -> str:
    """Say why nothing better runs, where a last resort does or nothing at all."""
    runs = LAST_RESORTS.get(one.kind, "") if isinstance(one, LockEntry) else "nothing"
    if not runs:
        return ""
    refused = [candidate for candidate in candidates if candidate.outcome == "refused"]
    if not refused:
        return f"{runs} runs: nothing else on the search path implements it"
    first = refused[0]
    more = f", and {len(refused) - 1} more were refused" if len(refused) > 1 else ""
    return f"{runs} runs: {first.name} was refused, {first.reason}{more}"

"""From the receipts of an engine's processes to a verdict: which locked implementations really ran."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from day0.errors import Day0Error
from day0.records import LockEntry
from day0.records._base import Record
from day0.registry.export.runtime.receipts import SCHEMA

__all__ = ["Coverage", "Expected", "Process", "Reading", "Status", "judge", "newest_run", "read_receipts"]

Status = Literal["called", "partly", "inert"]
MAX_BYTES = 1 << 26
MAX_FILES = 10_000
Count = Field(ge=0, le=1 << 62)


class Calls(Record):
    """One implementation in one place."""

    identity: str
    dtypes: str
    target: str
    site: str
    count: int = Count
    captured: int = Count
    shapes: dict[str, int]
    more_shapes: int = Field(default=0, ge=0)


class Bound(Record):
    """One instance of a target that will call us."""

    target: str
    site: str


class Declined(Record):
    """Where the engine's own code ran."""

    target: str
    site: str
    reason: str
    meant: bool = False
    count: int = Count


class Process(Record):
    """What one process wrote."""

    schema_: Literal["day0.receipt/1"] = Field(alias="schema")
    lock: str
    engine: str
    engine_version: str
    role: str
    pid: int
    parent: int
    started: float = Field(allow_inf_nan=False)
    written: float = Field(allow_inf_nan=False)
    bound: tuple[Bound, ...]
    declined: tuple[Declined, ...]
    calls: tuple[Calls, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What a folder of receipts holds."""

    processes: tuple[Process, ...]
    """Those of the lock that was asked for, oldest first."""
    of_other_locks: int
    unreadable: tuple[str, ...]
    """File and what is wrong with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """One entry of the lock that has to run."""

    entry: LockEntry
    targets: frozenset[str]
    """Names of the targets that may call it."""
    tested_shapes: frozenset[str]
    """Empty: not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """The verdict on one entry."""

    identity: str
    dtypes: tuple[str, ...]
    status: Status
    reason: str
    calls: int
    captured: int
    sites: tuple[str, ...]
    """Where it ran."""
    idle: tuple[str, ...]
    """Places that were bound to the plugin and in which nothing of it ran."""
    own: tuple[str, ...]
    """Places in which the engine's own code ran, with the reason."""
    outside: tuple[str, ...]
    """Shapes that were not among those tested; only where those are known."""


def read_receipts(folder: Path, lock: str) -> Reading:
    """Read every receipt in a folder. What is cut off, too large or not ours is named and takes no part.

    Raises Day0Error if there is no such folder or it cannot be read.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))  # noqa: PTH208 - one error to catch
    except OSError as error:
        raise Day0Error(
            str(folder),
            f"receipts cannot be read: {error.strerror}",
            hint="the plugin writes there once an engine has loaded it; was it installed where the engine runs?",
        ) from None
    if len(names) > MAX_FILES:
        raise Day0Error(
            str(folder), f"{len(names)} files are no receipts of ours", hint="name the folder of the export"
        )
    processes, others, bad = [], 0, []
    for name in names:
        found = _read(folder / name)
        if isinstance(found, str):
            bad.append(f"{name}: {found}")
        elif found.lock != lock:
            others += 1
        else:
            processes.append(found)
    processes.sort(key=lambda one: (one.started, one.pid))
    return Reading(processes=tuple(processes), of_other_locks=others, unreadable=tuple(bad))


def _read(path: Path) -> Process | str:
    try:
        if not path.is_file():
            return "not a plain file"
        if path.stat().st_size > MAX_BYTES:
            return "too large for a receipt"
        return Process.model_validate_json(path.read_bytes())
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"no receipt of {SCHEMA}: {place}{': ' if place else ''}{first['msg']}"[:200]
    except RecursionError:
        return "nested too deeply"


def newest_run(processes: Iterable[Process]) -> tuple[Process, ...]:
    """Return the processes of the last start of an engine: those that have one ancestor among the receipts.

    An older run must not vouch for a newer one. Where processes were not started by each other, only the last counts:
    better a gate that fails for no reason than one that passes for none.
    """
    known = sorted(processes, key=lambda one: (one.started, one.pid))
    roots: list[int] = []
    for place, one in enumerate(known):
        above = [n for n in range(place) if known[n].pid == one.parent]
        roots.append(roots[above[-1]] if above else place)
    return tuple(one for one, root in zip(known, roots, strict=True) if root == max(roots))


def judge(expected: Iterable[Expected], processes: Iterable[Process]) -> tuple[Coverage, ...]:
    """Hold the receipts against the entries of a lock."""
    known = tuple(processes)
    return tuple(_cover(one, known) for one in expected)


def _cover(one: Expected, processes: tuple[Process, ...]) -> Coverage:
    identity, dtypes = str(one.entry.identity), " ".join(one.entry.dtypes)
    calls = [it for process in processes for it in process.calls if (it.identity, it.dtypes) == (identity, dtypes)]
    # By process: of several ranks that build the same layers, one in which nothing runs must show.
    bound = {
        (process.pid, it.target, it.site) for process in processes for it in process.bound if it.target in one.targets
    }
    ran = {(process.pid, it.target, it.site) for process in processes for it in process.calls if it.count}
    own = _own(one, processes)
    total = sum(it.count for it in calls)
    several = len({pid for pid, _, _ in bound}) > 1
    idle = tuple(sorted(_place(target, site, pid if several else None) for pid, target, site in bound - ran))
    status: Status = "inert" if not total else "partly" if idle or own else "called"
    seen = {shape for it in calls for shape in it.shapes}
    return Coverage(
        identity=identity,
        dtypes=one.entry.dtypes,
        status=status,
        reason=_reason(status, one, processes, bound, idle, own),
        calls=total,
        captured=sum(it.captured for it in calls),
        sites=tuple(sorted({_place(it.target, it.site) for it in calls})),
        idle=idle,
        own=own,
        outside=tuple(sorted(seen - one.tested_shapes)) if one.tested_shapes else (),
    )


def _own(one: Expected, processes: tuple[Process, ...]) -> tuple[str, ...]:
    found: Mapping[str, None] = dict.fromkeys(
        f"{_place(it.target, it.site)}: {it.reason}"
        for process in processes
        for it in process.declined
        if it.target in one.targets and not it.meant
    )
    return tuple(sorted(found))


def _place(target: str, site: str, pid: int | None = None) -> str:
    return f"{target} {site}".rstrip() + (f" in process {pid}" if pid is not None else "")


def _more(places: tuple[str, ...]) -> str:
    return f" and {len(places) - 1} more" if len(places) > 1 else ""


def _reason(
    status: Status,
    one: Expected,
    processes: tuple[Process, ...],
    bound: set[tuple[int, str, str]],
    idle: tuple[str, ...],
    own: tuple[str, ...],
) -> str:
    if status == "called":
        return ""
    if status == "partly":
        parts = [f"{len(idle)} of {len(bound)} places never called it: {idle[0]}{_more(idle)}"] if idle else []
        parts += [f"the engine's own code ran: {own[0]}{_more(own)}"] if own else []
        return "; ".join(parts)
    if not processes:
        return "no process wrote a receipt: the plugin was not loaded"
    if own:
        return f"the engine's own code ran: {own[0]}{_more(own)}"
    if bound:
        return f"{len(bound)} places were bound to it and none called it"
    meant = [it.reason for process in processes for it in process.declined if it.target in one.targets]
    if meant:
        return f"the engine built {', '.join(sorted(one.targets))} for others only: {meant[0]}"
    if one.entry.operator.startswith("aten::"):
        return "the plugin was loaded, and nothing called it through torch's dispatcher; compiled graphs do not"
    names = " or ".join(sorted(one.targets)) or one.entry.operator
    return f"the plugin was loaded, and no {names} of the engine asked for it"

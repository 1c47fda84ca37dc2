"""What an active lock has chosen, in the form that a router can look up quickly.

A context holds one `Table`: for each place (operator and dispatch key) the choices by dtypes. While an implementation
runs, its context holds the same table without its operator, so that a call of its own reaches the kernel below.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from itertools import count
from typing import Any

import torch

from day0.errors import Day0Error
from day0.implementation import Implementation
from day0.records import Lock, LockEntry
from day0.reference_ops.signatures import dtype_of, resolve
from day0.registry.call_guard import CallGuard
from day0.registry.entry_points import refuse_missing_distribution
from day0.registry.fallback import cpu_fallback

__all__ = ["CURRENT", "NOTHING", "Chooser", "Counter", "Slot", "Table", "Tally", "choose_all", "place_of"]

Choice = tuple[LockEntry, Implementation]
DTypes = tuple[torch.dtype, ...]
Filled = tuple[Choice, "Tally", CallGuard | None]


class Counter:
    """Counts without losing a tick to another thread: a tick is one call of C code, which nothing interrupts."""

    __slots__ = ("_lock", "_reads", "tick")

    def __init__(self) -> None:
        self.tick: Callable[[], int] = count().__next__
        """Count one; returns how often it was called before."""
        self._reads = 0
        self._lock = threading.Lock()

    def total(self) -> int:
        """Return the number of ticks. Reading ticks too, so reads are taken off."""
        with self._lock:
            reads, self._reads = self._reads, self._reads + 1
            return self.tick() - reads


class Tally:
    """What is counted for one entry of a lock, by all threads together."""

    __slots__ = ("_where_lock", "begun", "captured", "failed", "where")

    def __init__(self) -> None:
        self.begun, self.failed, self.captured = Counter(), Counter(), Counter()
        self.where: dict[str, Counter] = {}
        """By the path of the module that was running."""
        self._where_lock = threading.Lock()

    def calls(self) -> int:
        """Return how many calls gave a result."""
        return self.begun.total() - self.failed.total()

    def at(self, path: str) -> Counter:
        """Return the counter of a module."""
        with self._where_lock:
            return self.where.setdefault(path, Counter())


class Slot:
    """One choice in one table. The tally is the lock's; the table for what it calls is its own."""

    __slots__ = ("entry", "guard", "implementation", "inner", "next_check", "next_result", "run", "tally", "tick")

    def __init__(self, choice: Choice, tally: Tally, guard: CallGuard | None) -> None:
        self.entry, self.implementation = choice
        self.guard = guard
        """What looks at every call, for an implementation that does not take all calls of its dtypes."""
        self.run: Callable[..., Any] = self.implementation.run
        self.tally, self.tick = tally, tally.begun.tick
        self.next_check = 0
        """The number of the call from which on a router has to look closer."""
        self.next_result = 0
        """The same for its result."""
        self.inner: Table = NOTHING


class Chooser(dict[Any, Slot]):
    """The choices of one operator by the dtypes of a call; a call with one tensor also by its dtype alone.

    `trees` has them once more, by the number of tensors and then by one dtype after the other: looking up there needs
    no tuple, which is the larger part of what a router costs.
    """

    __slots__ = ("trees",)

    def __init__(self, slots: dict[DTypes, Slot]) -> None:
        super().__init__(slots)
        self.update({dtypes[0]: slot for dtypes, slot in slots.items() if len(dtypes) == 1})
        self.trees: dict[int, Any] = {}
        for dtypes, slot in slots.items():
            node = self.trees.setdefault(len(dtypes), {} if dtypes else slot)
            for dtype in dtypes[:-1]:
                node = node.setdefault(dtype, {})
            if dtypes:
                node[dtypes[-1]] = slot


class Table(dict[str, Chooser]):
    """What a context has chosen, by place.

    `owner` is the lock that is active, None where none is. `running` are the operators whose implementations are
    running; they are left out, also by locks that are activated meanwhile.
    """

    __slots__ = ("_choices", "_lock", "_without", "closed", "outer", "owner", "running")

    def __init__(self, *, owner: Any = None, outer: Table | None = None, running: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.owner, self.outer, self.running, self.closed = owner, outer, running, False
        self._choices: dict[str, dict[DTypes, Filled]] = {}
        self._without: dict[str, Table] = {}
        self._lock = threading.Lock()

    def fill(self, choices: dict[str, dict[DTypes, Filled]]) -> None:
        """Take over the choices by place, but for operators that are running."""
        self._choices = choices
        for place, by_dtypes in choices.items():
            if place.partition(" ")[0] not in self.running:
                slots = {dtypes: Slot(*filled) for dtypes, filled in by_dtypes.items()}
                self[place] = Chooser(slots)

    def without(self, op: str) -> Table:
        """Return this table for the time in which an implementation of `op` runs."""
        with self._lock:
            found = self._without.get(op)
            if found is None:
                found = Table(owner=self.owner, outer=self.outer, running=self.running | {op})
                found.fill(self._choices if not self.closed else {})
                self._without[op] = found
            return found

    def close(self) -> None:
        """Choose nothing any more, wherever a copy of the context still holds this table."""
        with self._lock:
            self.closed = True
            derived = list(self._without.values())
        self.clear()
        for table in derived:
            table.close()

    def look_again(self) -> None:
        """Let routers look closer at the next call of every choice."""
        with self._lock:
            derived = list(self._without.values())
        for chooser in list(self.values()):
            for slot in chooser.values():
                slot.next_check = slot.next_result = 0
        for table in derived:
            table.look_again()


NOTHING = Table()
CURRENT: ContextVar[Table] = ContextVar("day0_current_table", default=NOTHING)


def place_of(op: str, key: str) -> str:
    """Return the name of a place: an operator with a blank and the dispatch key."""
    return f"{op} {key}"


def choose_all(lock: Lock, implementations: Iterable[Implementation]) -> dict[str, dict[DTypes, Choice]]:
    """Return the choices of a lock by operator and dtypes.

    Raises Day0Error for an implementation that is not there, one whose source has changed, and for an operator or a
    dtype that this torch does not have.
    """
    known = {str(one.identity): one for one in implementations}
    choices: dict[str, dict[DTypes, Choice]] = {}
    for entry in lock.entries:
        resolve(entry.operator)
        dtypes = tuple(dtype_of(name) for name in entry.dtypes)
        choices.setdefault(entry.operator, {})[dtypes] = (entry, _implementation(entry, known))
    return choices


def _implementation(entry: LockEntry, known: dict[str, Implementation]) -> Implementation:
    one = cpu_fallback(entry.operator) if entry.kind == "cpu_fallback" else known.get(str(entry.identity))
    if one is None:
        refuse_missing_distribution(entry)
        raise Day0Error(
            f"lock: {entry.operator}",
            f"the implementation {entry.identity} is not there",
            facts=(f"it came from {entry.origin}",),
            hint="give its file with --with, or lock again with `day0 register`",
        )
    if one.source_hash != entry.source_hash:
        raise Day0Error(
            f"lock: {entry.operator}",
            f"the source of {entry.identity} has changed since it was locked",
            facts=(f"locked {entry.source_hash[:19]}", f"{one.origin} is {one.source_hash[:19]} now"),
            hint="lock again with `day0 register`, then check again",
        )
    return one

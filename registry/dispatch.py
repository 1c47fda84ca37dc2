"""Let a lock be active in a context: torch calls go to its implementations, and every one that runs is counted.

Two locks can be active in two threads with different implementations of one operator. The last one to leave takes the
routers away, and torch is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from day0.devices.backward import in_this_thread
from day0.implementation import Implementation
from day0.records import Lock
from day0.registry.call_guard import guard_of
from day0.registry.choices import CURRENT, Table, Tally, choose_all, place_of
from day0.registry.dispatcher import foreign_kernels
from day0.registry.receipts import ActiveLock, key_of
from day0.registry.routers import ROUTERS

__all__ = ["ActiveLock", "activate", "carried", "suspended"]

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def activate(lock: Lock, device: torch.device, implementations: Iterable[Implementation]) -> Iterator[ActiveLock]:
    """Let the lock's implementations stand in for the operators it names, on one type of device, in this context.

    A kernel that another library put into torch for one of the operators is named in `ActiveLock.notes`.
    Raises Day0Error if the lock names an implementation that is not there or whose source has changed, or an operator
    or dtype that this torch does not have. A call raises WrongResult where an implementation breaks the contract, and
    RefusedCall where one does not take a call that was not traced.
    """
    choices = choose_all(lock, implementations)
    key = torch._C._dispatch_key_for_device(device.type)
    tallies = {key_of(entry): Tally() for entry in lock.entries}
    notes = tuple(note for op in sorted(choices) if (note := _note(op, key)))
    with ExitStack() as stack:
        for op in sorted(choices):
            ROUTERS.enter(op, key)
            stack.callback(ROUTERS.leave, op, key)
        table = Table(outer=CURRENT.get(), running=CURRENT.get().running)
        active = ActiveLock(lock=lock, device=device, table=table, tallies=tallies, notes=notes)
        table.owner = active
        by_place = {
            place_of(op, key): {
                dtypes: (choice, tallies[key_of(choice[0])], guard_of(*choice, device.type))
                for dtypes, choice in found.items()
            }
            for op, found in choices.items()
        }
        table.fill(by_place)
        stack.callback(active.unwatch)
        # Backward on a device runs in threads of torch's own, which know no lock: here it runs in this one.
        stack.enter_context(in_this_thread())
        stack.enter_context(_current(table))
        yield active


@contextmanager
def suspended() -> Iterator[None]:
    """Let no lock be active in this context: for references, which must not run on what they are to judge."""
    with _current(Table(outer=CURRENT.get(), running=CURRENT.get().running)):
        yield


def carried(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that runs in a copy of this context wherever it is called: with the locks active here.

    For threads: a new thread, and one of a pool, begins without any lock.
    """
    context = copy_context()

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # A copy for each call: a context can be entered only once at a time.
        return context.copy().run(function, *args, **kwargs)

    return run


@contextmanager
def _current(table: Table) -> Iterator[None]:
    CURRENT.set(table)
    try:
        yield
    finally:
        # Not by a token: a generator may be closed in another context, or after one that began later.
        table.close()
        if CURRENT.get() is table:
            outer = table.outer
            while outer is not None and outer.closed and outer.outer is not None:
                outer = outer.outer
            CURRENT.set(outer if outer is not None else table)


def _note(op: str, key: str) -> str:
    found = [one.where for one in foreign_kernels(op, key) if one.active]
    return (
        f"{op} on {key} was already replaced by {found[0]}; calls that the lock does not cover go there"
        if found
        else ""
    )

"""What is active in a context, and the proof of what ran: how often each entry of a lock, and in which modules."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from day0.records import Lock, LockEntry, Receipt, Trace
from day0.registry.choices import Table, Tally
from day0.registry.dispatcher import foreign_kernels

__all__ = ["ActiveLock", "Key", "difference", "entries_to_run", "key_of", "silent"]

Key = tuple[str, str]


def key_of(entry: LockEntry) -> Key:
    """Return what names an entry in counts: its operator and its dtypes as text."""
    return entry.operator, str(entry.dtypes)


@dataclass(kw_only=True, slots=True)
class ActiveLock:
    """What is active in this context, and what was counted. Counts may be read at any time, from any thread."""

    lock: Lock
    device: torch.device
    table: Table
    tallies: dict[Key, Tally]
    notes: tuple[str, ...] = ()
    """What else was found in torch's dispatch tables, for people: kernels that another library put there."""
    watched: bool = False
    """Whether calls are counted by module."""
    _hooks: dict[int, tuple[nn.Module, list[Any]]] = field(default_factory=dict)
    _modules: _Modules = field(default_factory=lambda: _Modules())

    @property
    def counts(self) -> dict[Key, int]:
        """How often each entry ran that ran at all, by operator and dtypes."""
        found = {key: tally.calls() for key, tally in self.tallies.items()}
        return {key: calls for key, calls in found.items() if calls}

    def calls_of(self, entry: LockEntry) -> int:
        """Return how often an entry ran; 0 for one of another lock."""
        tally = self.tallies.get(key_of(entry))
        return tally.calls() if tally is not None else 0

    def receipts(self) -> tuple[Receipt, ...]:
        """Return one receipt for each entry of the lock; calls is 0 for one that never ran."""
        return tuple(self._receipt(entry) for entry in self.lock.entries)

    def _receipt(self, entry: LockEntry) -> Receipt:
        tally = self.tallies[key_of(entry)]
        where = {path: counter.total() for path, counter in sorted(tally.where.items())}
        return Receipt(
            identity=str(entry.identity),
            operator=entry.operator,
            kind=entry.kind,
            dtypes=entry.dtypes,
            device=str(self.device),
            calls=tally.calls(),
            captured=tally.captured.total(),
            where=where,
        )

    def bypassed(self) -> tuple[str, ...]:
        """Say over which routers of this lock another library has registered a kernel since, and where."""
        key = torch._C._dispatch_key_for_device(self.device.type)
        found = {
            op: next((one.where for one in foreign_kernels(op, key) if one.active), "")
            for op in sorted({entry.operator for entry in self.lock.entries})
        }
        return tuple(f"{op}: a kernel from {place} stands over the router" for op, place in found.items() if place)

    @property
    def fallbacks(self) -> int:
        """How many calls left the device for the CPU."""
        away = {key_of(entry) for entry in self.lock.entries if entry.kind == "cpu_fallback"}
        return sum(self.tallies[key].calls() for key in away)

    def watch(self, model: nn.Module) -> None:
        """Count calls by the path of the module that is running, from now until the lock is left.

        The same model again does nothing. A module with two paths is counted at the first one.
        """
        if not self.lock.entries or id(model) in self._hooks:
            return
        handles: list[Any] = []
        for path, module in model.named_modules():
            handles += self._modules.follow(module, path)
        self._hooks[id(model)] = (model, handles)
        self.watched = True
        self.table.look_again()

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch a model for the time of a `with`."""
        self.watch(model)
        try:
            yield
        finally:
            self.unwatch(model)

    def unwatch(self, model: nn.Module | None = None) -> None:
        """Take the hooks from a model, or from all of them."""
        for name in [id(model)] if model is not None else list(self._hooks):
            for handle in self._hooks.pop(name, (model, []))[1]:
                handle.remove()
        self.watched = bool(self._hooks)

    def running_module(self) -> str:
        """Return the path of the innermost watched module that is running in this thread, `(outside)` for none."""
        return self._modules.innermost()


class _Modules(threading.local):
    """The watched modules that are running, one list for each thread."""

    def __init__(self) -> None:
        self.running: list[str] = []

    def innermost(self) -> str:
        return self.running[-1] if self.running else "(outside)"

    def follow(self, module: nn.Module, path: str) -> list[Any]:
        name = path or "(model)"

        def enter(*_: Any) -> None:
            self.running.append(name)

        def leave(*_: Any) -> None:
            # After an exception in a hook the list may be longer than it should be.
            while self.running and self.running.pop() != name:
                pass

        before = module.register_forward_pre_hook(enter, prepend=True)
        return [before, module.register_forward_hook(leave, always_call=True)]


def silent(
    receipts: Iterable[Receipt], entries: Iterable[LockEntry], must_run: Collection[Key] | None = None
) -> tuple[str, ...]:
    """Name the locked implementations that never ran, as `IDENTITY for dtypes`.

    `receipts` and `entries` are of one lock and in its order. `must_run` are the entries that had to run; None is all.
    """
    return tuple(
        f"{entry.identity} for {', '.join(entry.dtypes) or 'no tensors'}"
        for receipt, entry in zip(receipts, entries, strict=True)
        if not receipt.calls and (must_run is None or key_of(entry) in must_run)
    )


def difference(now: Receipt, then: Receipt) -> Receipt:
    """Return what was counted between two receipts of one entry."""
    where = {path: more for path, calls in now.where.items() if (more := calls - then.where.get(path, 0))}
    update = {"calls": now.calls - then.calls, "captured": now.captured - then.captured, "where": where}
    return now.model_copy(update=update)


def entries_to_run(lock: Lock, trace: Trace) -> frozenset[Key]:
    """Return the entries that a canary has to reach: it runs the model's own phases, or prompts without images.

    An entry whose calls were seen only in phases with images is not among them; one whose calls the trace does not
    have is.
    """
    reached = {phase.name for phase in trace.phases if not phase.images}
    phases = {entry.id: {name for name, calls in entry.counts.items() if calls} for entry in trace.entries}
    return frozenset(
        key_of(entry)
        for entry in lock.entries
        if not (seen := set().union(*(phases.get(one, set()) for one in entry.signatures))) or seen & reached
    )

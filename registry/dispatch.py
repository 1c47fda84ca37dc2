"""Route torch calls to the locked implementations, while a context is active, and count every one that ran.

One router stands at each (operator, dispatch key) that any active lock needs. It reads a context variable, so two
locks can be active in two threads with different implementations of one operator. The last one to leave takes the
routers away, and torch is as it was.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from day0.devices.leaves import call_at, composite_key, composite_kind
from day0.devices.numbers import numbers_as_tensors
from day0.devices.sim.device import native_kernel
from day0.errors import Day0Error
from day0.implementation import Implementation
from day0.records import Lock, LockEntry, Receipt
from day0.reference_ops.signatures import dtype_name, resolve, tensors_in
from day0.registry.fallback import cpu_fallback

__all__ = ["ActiveLock", "activate", "suspended"]

Choice = tuple[LockEntry, Implementation]


@dataclass(kw_only=True, slots=True)
class ActiveLock:
    """What is active in this context: the choices and how often each ran."""

    lock: Lock
    device: torch.device
    choices: dict[str, dict[tuple[str, ...], Choice]]
    counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def receipts(self) -> tuple[Receipt, ...]:
        """Return one receipt for each entry of the lock; calls is 0 for one that never ran."""
        return tuple(
            Receipt(
                identity=str(entry.identity),
                operator=entry.operator,
                kind=entry.kind,
                device=str(self.device),
                calls=self.counts.get((entry.operator, str(entry.dtypes)), 0),
            )
            for entry in self.lock.entries
        )

    @property
    def fallbacks(self) -> int:
        """How many calls left the device for the CPU."""
        kinds = {(entry.operator, str(entry.dtypes)): entry.kind for entry in self.lock.entries}
        return sum(count for key, count in self.counts.items() if kinds[key] == "cpu_fallback")


_ACTIVE: ContextVar[ActiveLock | None] = ContextVar("day0_active_lock", default=None)
_RUNNING: ContextVar[frozenset[str]] = ContextVar("day0_running", default=frozenset())


@contextmanager
def activate(lock: Lock, device: torch.device, implementations: Iterable[Implementation]) -> Iterator[ActiveLock]:
    """Let the lock's implementations stand in for the operators it names, on one type of device, in this context.

    Raises Day0Error if the lock names an implementation that is not there or whose source has changed.
    """
    active = ActiveLock(lock=lock, device=device, choices=_choices(lock, implementations))
    key = torch._C._dispatch_key_for_device(device.type)
    names = sorted(active.choices)
    for name in names:
        _ROUTERS.enter(name, key)
    token = _ACTIVE.set(active)
    try:
        yield active
    finally:
        _ACTIVE.reset(token)
        for name in names:
            _ROUTERS.leave(name, key)


@contextmanager
def suspended() -> Iterator[None]:
    """Let no lock be active in this context: for references, which must not run on what they are to judge."""
    token = _ACTIVE.set(None)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def _choices(lock: Lock, implementations: Iterable[Implementation]) -> dict[str, dict[tuple[str, ...], Choice]]:
    known = {str(one.identity): one for one in implementations}
    choices: dict[str, dict[tuple[str, ...], Choice]] = {}
    for entry in lock.entries:
        one = cpu_fallback(entry.operator) if entry.kind == "cpu_fallback" else known.get(str(entry.identity))
        if one is None:
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
        choices.setdefault(entry.operator, {})[entry.dtypes] = (entry, one)
    return choices


class _Routers:
    """The routers that are installed, with the number of contexts that need each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._installed: dict[tuple[str, str], tuple[torch.library.Library, int]] = {}

    def enter(self, op: str, key: str) -> None:
        with self._lock:
            library, users = self._installed.get((op, key), (None, 0))
            if library is None:
                library = _install(op, key)
            self._installed[(op, key)] = (library, users + 1)

    def leave(self, op: str, key: str) -> None:
        with self._lock:
            library, users = self._installed.pop((op, key))
            if users > 1:
                self._installed[(op, key)] = (library, users - 1)
            else:
                library._destroy()


_ROUTERS = _Routers()


def _install(op: str, key: str) -> torch.library.Library:
    namespace, _, name = op.partition("::")
    below = _kernel_below(op, key)
    library = torch.library.Library(namespace, "IMPL")
    with warnings.catch_warnings():
        # torch warns of every overridden kernel; here that is the purpose, and it is undone on exit.
        warnings.filterwarnings("ignore", message="Warning only once for all operators", category=UserWarning)
        library.impl(name, _router(op, below), key, allow_override=True)
    return library


def _router(op: str, below: Callable[..., Any]) -> Callable[..., Any]:
    overload = resolve(op)

    def route(*args: Any, **kwargs: Any) -> Any:
        active = _ACTIVE.get()
        # The lock knows the call as the trace saw it, before numbers become tensors.
        choice = active.choices.get(op, {}).get(_dtypes(args, kwargs)) if active is not None else None
        args = numbers_as_tensors(overload, args, always=True)
        running = _RUNNING.get()
        # An implementation may call its own operator, which then means the one below.
        if active is None or choice is None or op in running:
            return below(*args, **kwargs)
        entry, implementation = choice
        token = _RUNNING.set(running | {op})
        try:
            result = implementation.run(*args, **kwargs)
        finally:
            _RUNNING.reset(token)
        key = (entry.operator, str(entry.dtypes))
        active.counts[key] = active.counts.get(key, 0) + 1
        return result

    return route


def _dtypes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
    tensors = tuple(dtype_name(tensor.dtype) for tensor in tensors_in((args, dict(sorted(kwargs.items())))))
    asked = tuple(
        dtype_name(value)
        for value in (*args, *(kwargs[name] for name in sorted(kwargs)))
        if isinstance(value, torch.dtype)
    )
    return tensors + asked


def _kernel_below(op: str, key: str) -> Callable[..., Any]:
    """Return what torch would have run without the router: the device's kernel, a composite, or its refusal."""
    overload = resolve(op)
    native = native_kernel(op) if key == "PrivateUse1" else None
    if native is not None:
        # For a tensor subclass torch takes the Python kernel registered last, which would be the router again.
        return native
    if torch._C._dispatch_has_kernel_for_dispatch_key(op, key):
        kernel = torch.library.get_kernel(overload, key)
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        return lambda *args, **kwargs: kernel.call_boxed(keys, *args, **kwargs)
    kind = composite_kind(op)
    if kind is not None:
        composite = getattr(torch._C.DispatchKey, composite_key(kind))
        return lambda *args, **kwargs: call_at(overload, composite, args, kwargs)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"Could not run '{op}' with arguments from the '{key}' backend: no kernel is registered for it, "
            "and no implementation is active for these dtypes"
        )

    return refuse

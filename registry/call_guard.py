"""Hold a call that is being made against what its locked implementation takes: a lock knows traced shapes only."""

from __future__ import annotations

from typing import Any

import torch

from day0.errors import Day0Error
from day0.implementation import Constraints, Implementation
from day0.records import LockEntry
from day0.registry.constraints import refuse_by_predicate, refuse_call
from day0.registry.schemas import call_now

__all__ = ["CallGuard", "RefusedCall", "guard_of"]

MOST_KEPT = 4096


class RefusedCall(Day0Error):
    """A call that the locked implementation does not take, by its own constraints or predicate."""


class CallGuard:
    """What one implementation takes. A kind of call that was looked at is not looked at again."""

    __slots__ = ("_device", "_entry", "_one", "_seen")

    def __init__(self, entry: LockEntry, one: Implementation, device: str) -> None:
        self._entry, self._one, self._device = entry, one, device
        self._seen: dict[Any, str] = {}

    def refuse(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise RefusedCall for a call that the implementation does not take."""
        key = (tuple(map(_key, args)), tuple((name, _key(value)) for name, value in kwargs.items()))
        reason = self._seen.get(key)
        if reason is None:
            if len(self._seen) >= MOST_KEPT:
                self._seen.clear()
            reason = self._seen[key] = self._reason(args, kwargs)
        if reason:
            raise RefusedCall(
                f"{self._entry.operator} by {self._entry.identity}",
                f"it does not take this call: {reason}",
                facts=(f"it comes from {self._one.origin}, and was locked for the shapes that were traced",),
                hint="trace a phase with such shapes and lock again: `day0 register` then chooses one that takes them",
            )

    def _reason(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        call = call_now(self._entry.operator, self._device, args, kwargs)
        reason = refuse_call(self._one.constraints, call)
        if reason or self._one.predicate is None:
            return reason
        return refuse_by_predicate(self._one.predicate, call)


def guard_of(entry: LockEntry, one: Implementation, device: str) -> CallGuard | None:
    """Return the guard of an implementation; None for one that takes every call of the dtypes that were locked."""
    limits = one.constraints
    by_dtype = Constraints(dtypes=limits.dtypes, first_dtype=limits.first_dtype)
    return None if limits == by_dtype and one.predicate is None else CallGuard(entry, one, device)


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride()
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    # 1, 1.0 and True are equal, and not the same argument.
    return type(value), value

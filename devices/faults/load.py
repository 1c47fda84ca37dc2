"""Find planted faults by name, and plant them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache

from day0.devices import faults
from day0.devices.backward import in_this_thread
from day0.devices.faults._fault import Fault
from day0.devices.sim.planting import PLANTED, Planting
from day0.errors import Day0Error, near_names

__all__ = ["find_faults", "load_faults", "planted"]


@cache
def load_faults() -> dict[str, Fault]:
    """Return all entries by name, legitimate differences too. Raises Day0Error if two files claim one name."""
    found: dict[str, Fault] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(faults.__path__)):
        if module.startswith("_") or module in _HELPERS:
            continue
        for one in importlib.import_module(f"{faults.__name__}.{module}").FAULTS:
            if one.name in found:
                raise Day0Error(f"fault {one.name}", f"{found[one.name].family} and {one.family} both claim the name")
            found[one.name] = one
    return found


_HELPERS = frozenset({"load", "observe"})
"""Modules of this folder that hold no faults."""


def find_faults(names: tuple[str, ...]) -> tuple[Fault, ...]:
    """Return the entries of these names, each once. Raises Day0Error for one that nobody planted, with near names."""
    known = load_faults()
    for name in names:
        if name not in known:
            hint = near_names(name, tuple(known)) or "`day0 device faults` lists them"
            raise Day0Error(f"fault '{name}'", "there is no such planted fault", hint=hint)
    return tuple(known[name] for name in dict.fromkeys(names))


@contextmanager
def planted(*names: str) -> Iterator[tuple[Planting, ...]]:
    """Switch faults of the simulated device on, in this context, besides those that are on already.

    On one operator, the fault that was named first stands outermost: its kernel calls the next. Other threads do not
    see it. What is yielded counts the calls that reached each of them. Raises Day0Error for an unknown name, before anything is switched on.
    """
    found = find_faults(names)
    standing = dict(PLANTED.get() or {})
    plantings = tuple(Planting(name=one.name, plant=one.plant) for one in found)
    for one, planting in zip(reversed(found), reversed(plantings), strict=True):
        for operator in one.operators:
            standing[operator] = (planting, *standing.get(operator, ()))
    # Nothing planted stays nothing: the device then asks no further.
    token = PLANTED.set(standing or None)
    try:
        # The threads of autograd know no context: backward passes run in this one.
        with in_this_thread() if found else nullcontext():
            yield plantings
    finally:
        PLANTED.reset(token)

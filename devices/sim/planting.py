"""Where planted faults stand: around the kernels of the simulated device, in the context that planted them.

The faults themselves are in `day0.devices.faults`. A call costs one look at a context variable when nothing is planted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PLANTED", "Original", "Plant", "Planting", "run_planted"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Original:
    """The kernel below a planted fault. Calling it does what the device does without the fault."""

    func: Any
    """The overload that was called."""
    memory: dict[Any, Any]
    """What the fault remembers from call to call; a new, empty one each time it is planted."""
    run: Callable[[tuple[Any, ...], dict[str, Any]], Any]

    @property
    def name(self) -> str:
        """Name with overload, as `aten::select.int`."""
        return str(self.func.name())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel."""
        return self.run(args, kwargs)


Plant = Callable[[Original, tuple[Any, ...], dict[str, Any]], Any]
"""Stands for a kernel: takes the kernel below, and the arguments of the call."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Planting:
    """One fault, planted once."""

    name: str
    plant: Plant
    memory: dict[Any, Any] = field(default_factory=dict)
    reached: Counter[str] = field(default_factory=Counter)
    """How often it stood in a call, by operator. One that was never reached shows nothing about who looked for it."""


Plantings = Mapping[str, tuple[Planting, ...]]
"""By operator, `aten::topk` for all its overloads or `aten::topk.values` for one; the first is the outermost."""

PLANTED: ContextVar[Plantings | None] = ContextVar("day0_planted_faults", default=None)


def run_planted(
    plantings: Plantings,
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
) -> Any:
    """Run one call through the faults that are planted on its operator, `run` below them all."""
    name = func.name()
    base = name.partition(".")[0]
    standing = plantings.get(name, ())
    if base != name:
        standing += plantings.get(base, ())
    if not standing:
        return run(func, args, kwargs)
    # What a faulty kernel calls in its turn is not faulty in the same way once more.
    token = PLANTED.set(_without(plantings, standing))
    try:
        return _run_all(standing, func, args, kwargs, run)
    finally:
        PLANTED.reset(token)


def _run_all(
    standing: tuple[Planting, ...],
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
) -> Any:
    if not standing:
        return run(func, args, kwargs)
    first, rest = standing[0], standing[1:]
    first.reached[func.name()] += 1

    def below(inner: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return _run_all(rest, func, inner, named, run)

    return first.plant(Original(func=func, memory=first.memory, run=below), args, kwargs)


def _without(plantings: Plantings, gone: tuple[Planting, ...]) -> Plantings:
    left = {op: tuple(one for one in ones if one not in gone) for op, ones in plantings.items()}
    return {op: ones for op, ones in left.items() if ones}

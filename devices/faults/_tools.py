"""Ways to make a faulty kernel out of a right one. Changes see plain CPU tensors, by the names of the schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from day0.devices.faults._fault import Aspect, Fault, Minimal
from day0.devices.sim.planting import Original, Plant
from day0.devices.sim.tensor import raw
from day0.devices.sim.wrap import wrap

__all__ = [
    "Arguments",
    "arguments",
    "fault",
    "instead",
    "run_unseen",
    "seeded",
    "shows",
    "with_arguments",
    "with_call",
    "with_result",
]

Arguments = dict[str, Any]


def arguments(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Return the arguments by name with plain tensors, those that were left out with their defaults."""
    found: Arguments = {}
    for place, one in enumerate(original.func._schema.arguments):
        given = args[place] if place < len(args) else kwargs.get(one.name, one.default_value)
        found[one.name] = raw(given)
    return found


def with_call(
    original: Original, args: tuple[Any, ...], kwargs: dict[str, Any], changes: Arguments
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the call with some arguments exchanged, positional ones where they were."""
    places = {one.name: place for place, one in enumerate(original.func._schema.arguments)}
    changed, named = list(args), dict(kwargs)
    for name, value in changes.items():
        if places[name] < len(changed):
            changed[places[name]] = wrap(value, ())
        else:
            named[name] = wrap(value, ())
    return tuple(changed), named


def with_arguments(change: Callable[[Arguments], Arguments | None]) -> Plant:
    """Make a kernel that takes some arguments for others. `change` returns those; nothing where the fault is silent."""

    def plant(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        changes = change(arguments(original, args, kwargs))
        if changes:
            args, kwargs = with_call(original, args, kwargs, changes)
        return original(*args, **kwargs)

    return plant


def with_result(change: Callable[[Any, Arguments], Any]) -> Plant:
    """Make a kernel whose results come out changed. `change` returns None where the fault is silent."""

    def plant(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        changed = change(raw(result), arguments(original, args, kwargs))
        return result if changed is None else wrap(changed, ())

    return plant


def instead(compute: Callable[[Arguments], Any]) -> Plant:
    """Make a kernel that computes something else altogether. `compute` returns None where the fault is silent."""

    def plant(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = compute(arguments(original, args, kwargs))
        if result is None:
            return original(*args, **kwargs)
        if not original.func._schema.is_mutable:
            run_unseen(original, args, kwargs)
        return wrap(result, (*args, *kwargs.values()))

    return plant


def run_unseen(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run the right kernel and throw its result away.

    A wrong kernel runs too: were nothing called below, a replacement in its place would be caught for not having run,
    and not for what it computes.
    """
    original(*args, **kwargs)


def shows(
    run: Callable[[torch.device], Any],
    *aspects: Aspect,
    gives: Any = None,
    raises: type[Exception] | None = None,
    message: str = "",
    on_cpu: bool = True,
) -> Minimal:
    """Make a minimal input; values is what differs unless something else is said."""
    found: Iterable[Aspect] = aspects or (("error",) if raises else ("values",))
    return Minimal(run=run, shows=frozenset(found), gives=gives, raises=raises, message=message, on_cpu=on_cpu)


def seeded(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return normal numbers on the CPU, the same each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def fault(
    name: str,
    family: str,
    source: str,
    does: str,
    operators: str,
    plant: Plant,
    minimal: Minimal,
    *,
    is_fault: bool = True,
    warns: bool = False,
    needs: tuple[str, ...] = (),
) -> Fault:
    """Make an entry; operators are separated by spaces."""
    return Fault(
        name=name,
        family=family,
        source=source,
        does=does,
        operators=tuple(operators.split()),
        plant=plant,
        minimal=minimal,
        is_fault=is_fault,
        warns=warns,
        needs=needs,
    )

"""One call on the device, with guards around it: what it gave, what it did beside that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from day0.analyzers.cases.case import Case, CaseInputs
from day0.analyzers.cases.copies import StoragePair, copy_with_storages
from day0.analyzers.checking.memory import fill_freed, poisoned
from day0.analyzers.checking.state import put_back, snapshot
from day0.analyzers.checking.watch import Watch, watching
from day0.analyzers.judging.results import results
from day0.devices.open import fallback_calls, synchronize

__all__ = ["Run", "draws_random", "run_on_device", "same_bits", "seed_generators"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What one call gave and did. `error` stands for its results where it raised."""

    got: tuple[torch.Tensor, ...] = ()
    moved: CaseInputs | None = None
    """Its arguments on the device, as they were left."""
    storages: tuple[StoragePair, ...] = ()
    error: BaseException | None = None
    changed: tuple[str, ...] = ()
    """Settings that it changed; they are put back."""
    beside: str = ""
    """What it wrote beside its buffers."""
    away: str = ""
    """How a kernel went to the CPU in silence."""
    fallbacks: int = 0
    """Calls that the device itself sent to the CPU, where it counts."""


def run_on_device(
    case: Case,
    operator: Any,
    inputs: CaseInputs,
    device: torch.device,
    expected: Iterable[torch.Tensor],
    watch: Watch,
) -> Run:
    """Run the call of a case once. Whatever it raises is part of the answer: a kernel may raise anything."""
    moved, storages = copy_with_storages(inputs, device)
    fill_freed(expected, device, watch.poison)
    seed_generators(case, device)
    before, counted = snapshot(device), fallback_calls(device)
    error: BaseException | None = None
    output: Any = ()
    with poisoned(watch.poison), watching(watch), torch.no_grad():
        try:
            output = _call(case, operator, moved)
            synchronize(device)  # what a kernel on a queue does wrong shows only here
        except BaseException as raised:  # noqa: BLE001 - kernels are other people's code; see the docstring
            error = raised
    watch.teller.phase("judge", 0.0)  # ends a copy of this process that the kernel has made
    changed = put_back(before, device, draws=draws_random(operator))
    if error is not None:
        return Run(error=error, changed=changed)
    got = tuple(results(operator, output, moved))
    return Run(
        got=got,
        moved=moved,
        storages=tuple(storages),
        changed=changed,
        beside=watch.written_beside(),
        away=watch.went_to_cpu(got),
        fallbacks=fallback_calls(device) - counted,
    )


def _call(case: Case, operator: Any, moved: CaseInputs) -> Any:
    return operator(*moved.args, **moved.kwargs)


def seed_generators(case: Case, device: torch.device) -> None:
    """Let the random numbers of the host and of the device begin at the same place for the same case."""
    seed = case.number & 0x7FFF_FFFF
    # Not torch.manual_seed: for every kind of device that is not open yet it keeps a stack trace.
    torch.default_generator.manual_seed(seed)
    seed_all = getattr(getattr(torch, device.type, None), "manual_seed_all", None)
    if seed_all is not None and device.type != "cpu":
        seed_all(seed)


@cache
def draws_random(operator: Any) -> bool:
    """Say whether an operator uses up random numbers by right."""
    return torch.Tag.nondeterministic_seeded in operator.tags or "Generator" in str(operator._schema)


def same_bits(one: Run, other: Run) -> bool:
    """Say whether two runs gave the same results bit for bit."""
    if one.error is not None or other.error is not None or len(one.got) != len(other.got):
        return False
    return all(_bits_equal(a.detach().cpu(), b.detach().cpu()) for a, b in zip(one.got, other.got, strict=True))


def _bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    rows = (one.contiguous().reshape(-1).view(torch.uint8) for one in (a, b))
    return torch.equal(*rows)

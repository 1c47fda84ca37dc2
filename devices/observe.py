"""What a device really does with one call, seen while it runs: the other side of a verdict.

Nothing here asks the code that makes verdicts (`verdict`, `support`, the expansion in `leaves`), or the two would
agree whatever the device does. What is looked at instead:

- `sim`: every kernel of the device that is entered, in the order in which it is entered; the device's counters of
  waits and of fallbacks; what is raised, and by which kernel.
- any other device: what is raised; the operators below the call, from torch's profiler; which kernel torch's own
  dispatch table names for the call (printed by torch, after it has applied its order of precedence); on CUDA torch's
  own warnings about waits.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn
from torch._C._profiler import _ExperimentalConfig

from day0.devices.open import synchronize
from day0.devices.probe_calls import RUN_ERRORS, fill_arguments, moved_to
from day0.devices.sim.state import STATE
from day0.records import Signature, Verdict
from day0.reference_ops.signatures import resolve, tensors_in

__all__ = ["Observed", "observe", "same_operator", "without_plumbing"]

_NAMED = re.compile(r"Could not run '(\w+::\w+(?:\.\w+)?)' with arguments from")
_ENDS = re.compile(r"this call (crashes|hangs)")
_BAD_VALUES = re.compile(r"out of (range|bounds)|index \d+ is out|must be (within|in range)", re.IGNORECASE)
_GIVES_VALUES_BACK = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero"})
"""Where nothing counts waits, an operator below a composite that gives a value or a size to the host is one."""

_EXPLICIT = "default backend kernel"
"""What torch's table calls a composite kernel that is the same for all devices, and may call a library itself."""

_PLUMBING_NAMES = """
alias as_strided as_strided_ clone contiguous copy_ _copy_from _copy_from_and_resize detach empty empty_like
empty_strided expand expand_as item _local_scalar_dense narrow new_empty new_empty_strided permute _reshape_alias
reshape resize_ resolve_conj resolve_neg result_type select slice split split_with_sizes squeeze squeeze_ t to _to_copy
transpose unbind unfold _unsafe_view unsqueeze view view_as
"""
_PLUMBING = frozenset(_PLUMBING_NAMES.split())
"""Allocation, views and copies: which of them a composite takes is nobody's business, and no device lacks them. A value
that goes to the host is seen as a wait."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """What became of one call."""

    verdict: Verdict | Literal["not_run"]
    """In the words of verdicts; `not_run` where the call cannot be made, which says nothing about the device."""
    reason: str = ""
    below: frozenset[str] = frozenset()
    """Operators that ran below the call, without allocation and views; with overload where the device tells it."""
    waits: bool = False
    """The host had to wait."""
    as_torch: bool = True
    """False where the simulated device took another kind of kernel than torch's own table names for it."""


@dataclass(kw_only=True, slots=True)
class _Seen:
    entered: list[str] = field(default_factory=list)
    """Kernels of the device, not those that ran within another one."""
    refused: str = ""
    """The kernel that raised, the innermost."""
    fallbacks: list[str] = field(default_factory=list)
    waits: bool = False
    depth: int = 0
    began: bool = False
    """The call was made, and not refused before for a tensor that the device does not hold."""


class _Forward(nn.Module):
    """Traced calls stand in a module's forward, and some devices refuse more there."""

    def forward(self, run: Callable[[], Any]) -> Any:
        return run()


def observe(signature: Signature, device: torch.device) -> Observed:
    """Run one call on a device that is open, with values that are valid for it, and say what it did."""
    seen = _Seen()
    found = _observe(signature, device, seen)
    if device.type != "sim" or not seen.began or found.verdict == "not_run":
        return found
    own = _kernel_in_table(signature.op, device) == "kernel"
    return replace(found, as_torch=own == (signature.op in seen.entered))


def _observe(signature: Signature, device: torch.device, seen: _Seen) -> Observed:
    try:
        op, given = resolve(signature.op), fill_arguments(signature)
    except RUN_ERRORS as error:
        return Observed(verdict="not_run", reason=_first_line(error))
    try:
        args, kwargs = moved_to(given, device)
    except RUN_ERRORS as error:
        # The device does not even hold what the call takes.
        return Observed(verdict="missing", reason=_first_line(error))
    seen.began = True
    watch = _watch_sim if device.type == "sim" else _watch_profiler
    try:
        with torch.no_grad(), watch(seen, device):
            result = _Forward()(lambda: op(*args, **kwargs))
        if device.type != "sim":
            synchronize(device)  # what a kernel raises comes late; and this wait is not the call's
    except RUN_ERRORS as error:
        if device.type == "sim" and _cpu_says_the_same(op, given, error):
            return Observed(verdict="not_run", reason=f"the CPU refuses these values too: {_first_line(error)}")
        return _of_error(signature.op, seen, error)
    elsewhere = next((one.device for one in tensors_in(result) if one.device.type != device.type), None)
    if elsewhere is not None:
        return Observed(verdict="cpu_fallback", reason=f"a result came back on {elsewhere}")
    if device.type == "sim":
        return _of_sim(signature.op, seen)
    return _of_table(signature.op, seen, _kernel_in_table(signature.op, device))


def same_operator(one: str, other: str) -> bool:
    """Say whether two overloads are forms of one operator: functional, in place, into `out`."""
    return _base(one) == _base(other)


def without_plumbing(names: Iterator[str] | frozenset[str] | set[str]) -> frozenset[str]:
    """Leave out allocation and views."""
    return frozenset(name for name in names if name.partition("::")[2].partition(".")[0] not in _PLUMBING)


def _base(op: str) -> str:
    return op.partition(".")[0].rstrip("_")


def _of_error(op: str, seen: _Seen, error: BaseException) -> Observed:
    text = _first_line(error)
    if _ENDS.search(text):
        return Observed(verdict="crashes", reason=text)
    if isinstance(error, IndexError) or (_BAD_VALUES.search(text) and not seen.refused):
        return Observed(verdict="not_run", reason=f"no valid values: {text}")
    named = _NAMED.search(text)
    leaf = named.group(1) if named else seen.refused or op
    verdict: Verdict = "missing" if same_operator(leaf, op) else "leaf_missing"
    return Observed(verdict=verdict, reason=f"{leaf}: {text}", below=frozenset({leaf}), waits=seen.waits)


def _cpu_says_the_same(op: Any, given: Any, error: BaseException) -> bool:
    """Say whether a borrowed kernel has complained of values that are not valid, and not of what it lacks."""
    if isinstance(error, NotImplementedError):
        return False
    try:
        with torch.no_grad():
            op(*given[0], **given[1])
    except RUN_ERRORS as again:
        return _first_line(again) == _first_line(error)
    return False


def _of_sim(op: str, seen: _Seen) -> Observed:
    entered = frozenset(seen.entered)
    if seen.fallbacks:
        return Observed(
            verdict="cpu_fallback", reason=f"fell back in {', '.join(seen.fallbacks)}", below=entered, waits=seen.waits
        )
    if op in entered:
        return Observed(verdict="native", waits=seen.waits)
    below = without_plumbing(entered)
    return Observed(verdict=_composite(op, below, waits=seen.waits), below=below, waits=seen.waits)


def _composite(op: str, below: frozenset[str], *, waits: bool) -> Verdict:
    if len(below) == 1 and all(same_operator(op, one) and _writes_out(one) for one in below):
        return "out_wrapper"
    return "decomposes_with_sync" if waits else "decomposes"


def _writes_out(op: str) -> bool:
    return any(one.kwarg_only and one.alias_info and one.alias_info.is_write for one in resolve(op)._schema.arguments)


@contextmanager
def _watch_sim(seen: _Seen, device: torch.device) -> Iterator[None]:
    """Put a note around every kernel of the simulated device."""
    kernels, counters = STATE.kernels, STATE.counters
    called, fallbacks, waits = counters.calls.copy(), counters.fallbacks.copy(), counters.host_syncs
    STATE.kernels = {name: _noted(name, kernel, seen) for name, kernel in kernels.items()}
    try:
        yield
    finally:
        STATE.kernels = kernels
        # torch calls a kernel without tensor arguments by itself, past the notes; the kernel counts itself.
        fresh = (counters.calls - called).keys()
        seen.entered += [name for name in fresh if name in kernels and _makes_from_nothing(name)]
        seen.fallbacks = sorted((counters.fallbacks - fallbacks).keys())
        seen.waits = counters.host_syncs > waits


def _makes_from_nothing(name: str) -> bool:
    return not any("Tensor" in str(argument.type) for argument in resolve(name)._schema.arguments)


def _noted(name: str, kernel: Callable[..., Any], seen: _Seen) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not seen.depth:
            seen.entered.append(name)
        seen.depth += 1
        returned = False
        try:
            result = kernel(*args, **kwargs)
            returned = True
        finally:
            seen.depth -= 1
            if not returned:
                seen.refused = seen.refused or name
        return result

    return run


@contextmanager
def _watch_profiler(seen: _Seen, device: torch.device) -> Iterator[None]:
    """Let torch's profiler list the operators below the call, and CUDA say where the host waits."""
    cuda = device.type == "cuda"
    before = torch.cuda.get_sync_debug_mode() if cuda else 0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if cuda:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            overloads = _ExperimentalConfig(capture_overload_names=True)
            with torch.autograd.profiler.profile(experimental_config=overloads) as profile:
                yield
        finally:
            if cuda:
                torch.cuda.set_sync_debug_mode(before)
    events = _operators(profile)
    seen.entered = list(_entered(events, device))
    waits = any("synchroniz" in str(one.message) for one in said)
    seen.waits = waits if cuda else any(name.partition(".")[0] in _GIVES_VALUES_BACK for _, name in events[1:])


def _operators(profile: Any) -> list[tuple[int, str]]:
    """Return the operators that the profiler saw in the order of their begin, each with its depth."""
    # `function_events` would fold a call into the one above it that has the same name but for the overload.
    events = [one for one in profile.kineto_results.events() if "::" in one.name()]
    events.sort(key=lambda one: (one.start_ns(), -one.duration_ns()))
    found: list[tuple[int, str]] = []
    ends: list[int] = []
    for event in events:
        while ends and event.start_ns() >= ends[-1]:
            ends.pop()
        overload = event.overload_name()
        found.append((len(ends), f"{event.name()}.{overload}" if overload else event.name()))
        ends.append(event.start_ns() + event.duration_ns())
    return found


def _entered(events: list[tuple[int, str]], device: torch.device) -> Iterator[str]:
    """Yield the kernels of the device, and not what runs within one of them.

    An explicit composite below which nothing runs but allocation, views and copies does its work itself; an implicit
    one cannot, it only calls.
    """
    within: int | None = None
    for place, (depth, name) in enumerate(events):
        if within is not None and depth > within:
            continue
        table = _kernel_in_table(name, device)
        found = table == "kernel" or (table == _EXPLICIT and not _computes_below(events[place + 1 :], depth))
        within = depth if found else None
        if found:
            yield name


def _computes_below(later: list[tuple[int, str]], depth: int) -> bool:
    below = itertools.takewhile(lambda one: one[0] > depth, later)
    return bool(without_plumbing({name for _, name in below}))


def _of_table(op: str, seen: _Seen, table: str) -> Observed:
    """Take the way from torch's own dispatch table, and what ran below from the profiler."""
    below = without_plumbing(frozenset(seen.entered) - {op})
    if table == "kernel":
        return Observed(verdict="native", waits=seen.waits)
    if table == "backend fallback":
        return Observed(verdict="cpu_fallback", below=below, waits=seen.waits)
    return Observed(verdict=_composite(op, below, waits=seen.waits), below=below, waits=seen.waits)


def _kernel_in_table(op: str, device: torch.device) -> str:
    """Return what torch calls the kernel that it takes: kernel, default backend kernel, math kernel, backend fallback."""
    key = torch._C._dispatch_key_for_device(device.type)
    for line in torch._C._dispatch_dump_table(op).splitlines():
        if line.startswith(f"{key}: "):
            return line.rpartition("[")[2].rstrip("]")
    return ""  # nothing: torch raises


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"

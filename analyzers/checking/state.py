"""Settings of torch and of the process that one call of an operator must leave as they are: seen, put back, told."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils import _python_dispatch

from day0.errors import USER_ERRORS

__all__ = ["Snapshot", "put_back", "snapshot"]

Snapshot = tuple[Any, ...]
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGSEGV, signal.SIGABRT)
_TINY = 5e-324


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fact:
    """One setting: how it is read and how it is put back. `drawn`: random operators change it by right."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    drawn: bool = False


def snapshot(device: torch.device) -> Snapshot:
    """Read all settings; what this torch or this device does not have reads as None."""
    facts = _facts(device.type)
    try:
        return tuple([fact.read() for fact in facts])
    except USER_ERRORS:
        return tuple(_read(fact) for fact in facts)


def put_back(before: Snapshot, device: torch.device, *, draws: bool) -> tuple[str, ...]:
    """Put every setting that changed back and return their names; `draws` for operators that use up random numbers."""
    changed = []
    written = False
    for fact, old, seen in zip(_facts(device.type), before, snapshot(device), strict=True):
        now = _read(fact) if written else seen  # one that is put back may take others with it
        if old is now or _same(old, now):
            continue
        written = True
        try:
            fact.write(old)
        except USER_ERRORS:
            changed.append(f"{fact.name} (and it cannot be put back)")
            continue
        if not (fact.drawn and draws):
            changed.append(f"{fact.name} ({_shown(old)} → {_shown(now)})" if _is_short(old) else fact.name)
    return tuple(changed)


def _read(fact: _Fact) -> Any:
    try:
        return fact.read()
    except USER_ERRORS:
        return None


def _same(old: Any, now: Any) -> bool:
    if isinstance(old, torch.Tensor) and isinstance(now, torch.Tensor):
        return torch.equal(old, now)
    return bool(old == now)


def _is_short(value: Any) -> bool:
    return isinstance(value, (bool, int, str, torch.dtype, torch.device))


def _shown(value: Any) -> str:
    return str(value)[:40]


@cache
def _facts(device: str) -> tuple[_Fact, ...]:
    return (*_torch_facts(), *_autocast_facts(device), *_random_facts(device), *_flag_facts(), *_process_facts())


def _torch_facts() -> tuple[_Fact, ...]:
    return (
        _Fact(name="default dtype", read=torch.get_default_dtype, write=torch.set_default_dtype),
        # None takes away the mode that stands for any other than the CPU.
        _Fact(
            name="default device",
            read=torch.get_default_device,
            write=lambda old: torch.set_default_device(None if old.type == "cpu" else old),
        ),
        _Fact(name="grad mode", read=torch.is_grad_enabled, write=torch._C._set_grad_enabled),
        _Fact(name="threads", read=torch.get_num_threads, write=torch.set_num_threads),
        _Fact(
            name="float32 matmul precision",
            read=torch.get_float32_matmul_precision,
            write=torch.set_float32_matmul_precision,
        ),
        _Fact(name="deterministic algorithms", read=_deterministic, write=lambda old: _set_deterministic(*old)),
        _Fact(
            name="subnormals", read=lambda: _TINY * 1.0 != 0.0, write=lambda kept: torch.set_flush_denormal(not kept)
        ),
        _Fact(
            name="dispatch modes",
            read=torch._C._len_torch_dispatch_stack,
            write=lambda count: _pop(torch._C._len_torch_dispatch_stack, _python_dispatch._pop_mode, count),
        ),
        _Fact(
            name="function modes",
            read=torch._C._len_torch_function_stack,
            write=lambda count: _pop(torch._C._len_torch_function_stack, torch.overrides._pop_mode, count),
        ),
    )


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(enabled: bool, warn_only: bool) -> None:
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


def _pop(length: Callable[[], int], pop: Callable[[], object], count: int) -> None:
    while length() > count:
        pop()


def _autocast_facts(device: str) -> tuple[_Fact, ...]:
    kinds = dict.fromkeys(("cpu", device))
    return tuple(
        fact
        for kind in kinds
        for fact in (
            _Fact(
                name=f"autocast on {kind}",
                read=lambda kind=kind: torch.is_autocast_enabled(kind),  # type: ignore[misc]  # bound per kind
                write=lambda on, kind=kind: torch.set_autocast_enabled(kind, on),  # type: ignore[misc]  # bound per kind
            ),
            _Fact(
                name=f"autocast dtype on {kind}",
                read=lambda kind=kind: torch.get_autocast_dtype(kind),  # type: ignore[misc]  # bound per kind
                write=lambda dtype, kind=kind: torch.set_autocast_dtype(kind, dtype),  # type: ignore[misc]  # bound per kind
            ),
        )
    )


def _random_facts(device: str) -> tuple[_Fact, ...]:
    facts = [
        _Fact(name="random numbers of the CPU", read=torch.get_rng_state, write=torch.set_rng_state, drawn=True),
        _Fact(name="random numbers of Python", read=random.getstate, write=random.setstate, drawn=True),
    ]
    module: Any = getattr(torch, device, None)
    if device != "cpu" and hasattr(module, "get_rng_state"):
        facts.append(
            _Fact(
                name=f"random numbers of {device}",
                read=module.get_rng_state,
                write=module.set_rng_state,
                drawn=True,
            )
        )
    return tuple(facts)


_FLAGS = (
    ("cuda.matmul", "allow_fp16_reduced_precision_reduction"),
    ("cuda.matmul", "allow_bf16_reduced_precision_reduction"),
    ("cudnn", "enabled"),
    ("cudnn", "benchmark"),
    ("cudnn", "deterministic"),
    ("mkldnn", "enabled"),
)


def _flag_facts() -> tuple[_Fact, ...]:
    facts = []
    for path, name in _FLAGS:
        owner: Any = torch.backends
        for part in path.split("."):
            owner = getattr(owner, part, None)
        facts.append(
            _Fact(
                name=f"torch.backends.{path}.{name}",
                read=lambda owner=owner, name=name: getattr(owner, name, None),  # type: ignore[misc]  # bound per flag
                write=lambda old, owner=owner, name=name: _set_flag(owner, name, old),  # type: ignore[misc]  # the same
            )
        )
    return tuple(facts)


def _set_flag(owner: Any, name: str, value: object) -> None:
    # Whatever imports torch's own test tools freezes these flags for good.
    with torch.backends.__allow_nonbracketed_mutation():
        setattr(owner, name, value)


def _process_facts() -> tuple[_Fact, ...]:
    return (
        _Fact(name="signal handlers", read=_handlers, write=_set_handlers),
        _Fact(name="working folder", read=os.getcwd, write=os.chdir),
        _Fact(name="sys.stdout", read=lambda: sys.stdout, write=lambda old: setattr(sys, "stdout", old)),
        _Fact(name="sys.stderr", read=lambda: sys.stderr, write=lambda old: setattr(sys, "stderr", old)),
        _Fact(name="garbage collection", read=gc.isenabled, write=lambda on: gc.enable() if on else gc.disable()),
        _Fact(name="recursion limit", read=sys.getrecursionlimit, write=sys.setrecursionlimit),
    )


def _handlers() -> tuple[Any, ...]:
    return tuple(signal.getsignal(number) for number in _SIGNALS)


def _set_handlers(handlers: tuple[Any, ...]) -> None:
    for number, handler in zip(_SIGNALS, handlers, strict=True):
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)

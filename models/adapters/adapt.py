"""Put adapters on a model: per module, reversible, and with an account of what was adapted and what was refused."""

from __future__ import annotations

import functools
import types
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from day0.errors import Day0Error
from day0.models.adapters._adapter import Adapter, Candidate, Refused, no_grad_needed
from day0.models.adapters._proof import prove
from day0.models.adapters.load import ALL, choose_adapters, load_adapters
from day0.reference_ops.torch_ops import register_operators

__all__ = ["Adaptation", "adapt", "adapted", "restore"]

FORWARD = "forward"
MOST_FACTS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Adaptation:
    """What became of a model's modules."""

    paths: dict[str, str] = field(default_factory=dict)
    """Adapter by module path, for the modules that call our operators now."""
    classes: dict[str, dict[str, int]] = field(default_factory=dict)
    """By adapter, how many modules of each class."""
    refused: dict[str, dict[str, str]] = field(default_factory=dict)
    """By adapter, why modules of a class keep their own code."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The same for people, one line for each adapter."""
        return tuple(f"{name}: {self.text(name)}" for name in sorted(self.classes))

    def text(self, name: str) -> str:
        """Return `9 LlamaRMSNorm, 4 LlamaMLP`."""
        return ", ".join(f"{count} {kind}" for kind, count in sorted(self.classes[name].items()))


@contextmanager
def adapted(model: nn.Module, names: tuple[str, ...]) -> Iterator[Adaptation]:
    """Adapt a model while this lasts; its modules are what they were afterwards, whatever happens."""
    done = adapt(model, names)
    try:
        yield done
    finally:
        restore(model)


def adapt(model: nn.Module, names: tuple[str, ...]) -> Adaptation:
    """Let the modules that the adapters fit call our operators. Other instances of their classes stay as they are.

    Raises Day0Error for a name that is no adapter, and for an adapter that fits no module of this model. With `all`
    only where none fits.
    """
    chosen = choose_adapters(names)
    register_operators()
    run = _Run(dtype=_dtype_of(model), taken={})
    for adapter in chosen:
        for path, module in model.named_modules():
            if _stands_for(adapter, module):
                _try(run, adapter, path, module)
    done = _account(run)
    served = {*done.classes, *run.covered}
    missing = [one.name for one in chosen if one.name in names and one.name not in served]
    if missing or (ALL in names and not done.classes):
        _refuse(model, missing[0] if missing else ALL, run.refused)
    for path, (_, candidate, adapter, module) in run.taken.items():
        _put_on(module, adapter, candidate, path)
    return done


def restore(model: nn.Module) -> None:
    """Give every adapted module of a model its own code back."""
    for module in model.modules():
        if _is_adapted(module):
            del module.__dict__[FORWARD]


@dataclass(kw_only=True, slots=True)
class _Run:
    """One pass over a model."""

    dtype: torch.dtype
    taken: dict[str, tuple[str, Candidate, Adapter, nn.Module]]
    refused: dict[str, dict[str, str]] = field(default_factory=dict)
    covered: set[str] = field(default_factory=set)
    """Adapters with a module that an earlier one took, which calls the same operators and more."""
    proven: dict[tuple[Any, ...], Candidate | Refused] = field(default_factory=dict)


def _try(run: _Run, adapter: Adapter, path: str, module: nn.Module) -> None:
    kind = type(module).__name__
    if path in run.taken:
        if set(adapter.operators) <= set(run.taken[path][2].operators):
            run.covered.add(adapter.name)
        return
    try:
        if FORWARD in vars(module):
            raise Refused("its forward was replaced on the instance already")
        candidate = _proven(run, adapter, module)
    except Refused as error:
        run.refused.setdefault(adapter.name, {}).setdefault(kind, str(error))
        return
    run.taken[path] = (adapter.name, candidate, adapter, module)


def _proven(run: _Run, adapter: Adapter, module: nn.Module) -> Candidate:
    """Return the candidate for a module; modules of one class that differ in nothing but sizes are proven once."""
    key = (adapter.name, type(module), _attributes(module))
    known = run.proven.get(key)
    if known is None:
        # In a thread of its own: the model may be built under modes in which nothing is computed, and those are a
        # thread's own, as are the device by default and the lock that is active.
        with ThreadPoolExecutor(max_workers=1) as pool:
            known = pool.submit(_proof, adapter, module, run.dtype).result()
        run.proven[key] = known
    if isinstance(known, Refused):
        raise known
    return known


def _proof(adapter: Adapter, module: nn.Module, dtype: torch.dtype) -> Candidate | Refused:
    try:
        return prove(adapter, module, adapter.candidates(module), dtype)
    except Refused as error:
        return error


def _attributes(module: nn.Module) -> tuple[Any, ...]:
    plain = tuple(
        (name, repr(value))
        for name, value in sorted(vars(module).items())
        if isinstance(value, (bool, int, float, str, type(None))) and name != "layer_idx"
    )
    tensors = tuple((name, None if one is None else str(one.dtype)) for name, one in module._parameters.items())
    children = tuple((name, type(child)) for name, child in module.named_children())
    return plain, tensors, children, id(getattr(module, "config", None))


def _stands_for(adapter: Adapter, module: nn.Module) -> bool:
    name = _name(type(module))
    if any(fnmatchcase(name, pattern) for pattern in adapter.unlike):
        return False
    return any(fnmatchcase(_name(kind), one) for kind in type(module).__mro__ for one in adapter.classes)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _dtype_of(model: nn.Module) -> torch.dtype:
    counts: Counter[torch.dtype] = Counter()
    for one in model.parameters():
        if one.is_floating_point() and one.dtype.itemsize >= 2:
            counts[one.dtype] += one.numel()
    return counts.most_common(1)[0][0] if counts else torch.float32


def _put_on(module: nn.Module, adapter: Adapter, candidate: Candidate, path: str) -> None:
    """Replace `forward` on the instance, so that hooks still run around it.

    A bound method, since a copy of the module then has one that is bound to the copy.
    """
    own = type(module).forward
    where = f"{path or 'model'} ({type(module).__name__})"

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not adapter.gradients:
            with torch.no_grad():
                return candidate.forward(self, *args, **kwargs)
        if not no_grad_needed(self, args, kwargs):
            # Its own code instead would be a kernel that is installed and never called.
            raise Day0Error(
                where,
                f"it is adapted to {', '.join(adapter.operators)}, which has no backward",
                hint="call the model under torch.no_grad(), or trace it without --adapt",
            )
        return candidate.forward(self, *args, **kwargs)

    functools.update_wrapper(forward, own)
    forward.day0_adapter = adapter.name  # type: ignore[attr-defined]  # a function takes any attribute
    module.forward = types.MethodType(forward, module)


def _is_adapted(module: nn.Module) -> bool:
    return hasattr(getattr(vars(module).get(FORWARD), "__func__", None), "day0_adapter")


def _account(run: _Run) -> Adaptation:
    counts: dict[str, Counter[str]] = {}
    for name, _, _, module in run.taken.values():
        counts.setdefault(name, Counter())[type(module).__name__] += 1
    # What one adapter lacks and another one has taken is no news.
    taken = {kind for found in counts.values() for kind in found}
    refused = {
        name: left
        for name, kinds in run.refused.items()
        if (left := {kind: reason for kind, reason in kinds.items() if kind not in taken})
    }
    return Adaptation(
        paths={path: one[0] for path, one in run.taken.items()},
        classes={name: dict(sorted(found.items())) for name, found in counts.items()},
        refused=refused,
    )


def _refuse(model: nn.Module, name: str, refused: dict[str, dict[str, str]]) -> None:
    """Say that an adapter fits nothing, why, and which ones would."""
    if name == ALL:
        what = f"no adapter fits a module of {type(model).__name__}"
        reasons = refused
    else:
        what = f"adapter '{name}' fits no module of {type(model).__name__}"
        reasons = {name: refused.get(name, {})}
    facts = tuple(
        f"{adapter}, {kind}: {reason}" for adapter, kinds in reasons.items() for kind, reason in kinds.items()
    )[:MOST_FACTS]
    others = "" if name == ALL else _fitting(model)
    raise Day0Error("--adapt", what, facts=facts, hint=others or "trace the model without --adapt")


def _fitting(model: nn.Module) -> str:
    run = _Run(dtype=_dtype_of(model), taken={})
    for adapter in load_adapters().values():
        for path, module in model.named_modules():
            if _stands_for(adapter, module):
                _try(run, adapter, path, module)
    names = sorted({taken[0] for taken in run.taken.values()})
    return f"adapters that fit it: {', '.join(names)}" if names else ""

"""What every module of a model was called with and what it returned, in the order in which the calls ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from day0.analyzers.modules.passes import Pass
from day0.analyzers.modules.tree import held_tensors, rebuilt, tensors_of

__all__ = ["Key", "ModuleCall", "Recording", "record_pass"]

Key = tuple[str, str, int]
"""Name of the model's call, path of the module, and how often that module had been called before in it."""


@dataclass(kw_only=True)
class ModuleCall:
    """One call of one module. Tensors are on the CPU."""

    key: Key
    class_name: str
    inputs: tuple[Any, Any] | None = None
    """Copies of its arguments as they were before the call; None where nobody asked for them."""
    dtypes: list[torch.dtype] = field(default_factory=list)
    """The dtypes of the tensors among its arguments, in order."""
    results: list[torch.Tensor] = field(default_factory=list)
    """What it returned, then what its caches hold."""
    input_holes: list[int] = field(default_factory=list)
    """How many elements of each argument are NaN or infinite."""


@dataclass(kw_only=True)
class Recording:
    """The calls of one pass."""

    calls: dict[Key, ModuleCall] = field(default_factory=dict)
    held_bytes: int = 0
    dropped: int = 0
    """Calls whose inputs were not kept because they were too large together."""


def record_pass(
    calls: Pass, model: nn.Module, device: torch.device, *, keep_inputs: int = 0, only: str | None = None
) -> Recording:
    """Run a pass and keep the results of every module, or of the one at path `only`.

    Their inputs are kept too, up to so many bytes together.
    """
    found = Recording()
    with torch.no_grad(), _hooked(model, found, keep_inputs, only) as begin:
        before: Any = None
        for call in calls:
            begin(call.name)
            before = call.run(model, device, before)
    return found


@contextmanager
def _hooked(model: nn.Module, found: Recording, keep_inputs: int, only: str | None) -> Iterator[Any]:
    state = _State(found=found, keep_inputs=keep_inputs)
    handles: list[Any] = []
    for path, module in model.named_modules():
        if only is None or path == only:
            handles += state.follow(path, module)
    try:
        yield state.begin
    finally:
        for handle in handles:
            handle.remove()


@dataclass(kw_only=True)
class _State:
    found: Recording
    keep_inputs: int
    name: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    running: list[ModuleCall] = field(default_factory=list)

    def begin(self, name: str) -> None:
        self.name = name
        self.counts.clear()

    def follow(self, path: str, module: nn.Module) -> list[Any]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.running.append(self._begun(path, module, args, kwargs))

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            call = self.running.pop()
            call.results = [_kept(one) for one in (*tensors_of(output), *held_tensors((*args, *kwargs.values())))]
            self.found.calls[call.key] = call

        before = module.register_forward_pre_hook(enter, with_kwargs=True)
        return [before, module.register_forward_hook(leave, with_kwargs=True)]

    def _begun(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> ModuleCall:
        call = ModuleCall(key=(self.name, path, self.counts[path]), class_name=type(module).__name__)
        self.counts[path] += 1
        given = tensors_of((args, kwargs))
        call.dtypes = [one.dtype for one in given]
        call.input_holes = [_holes(one) for one in given]
        if not self.keep_inputs:
            return call
        size = sum(one.numel() * one.element_size() for one in given)
        if self.found.held_bytes + size > self.keep_inputs:
            self.found.dropped += 1
            return call
        self.found.held_bytes += size
        call.inputs = rebuilt((args, kwargs), _kept)
        return call


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    # A clone also on the CPU: what is written in place later must not change what was seen.
    return tensor.detach().to("cpu", copy=True)


def _holes(tensor: torch.Tensor) -> int:
    if not tensor.is_floating_point() or tensor.element_size() == 1:
        return 0
    # On the CPU: a young device may lack the test.
    return int((~torch.isfinite(tensor.detach().cpu())).sum())

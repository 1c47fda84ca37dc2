"""Record which storages a model allocates while it runs, and when each of them is given back.

Works on meta: a storage there has its size and its lifetime, and no memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from day0.analyzers.recording.fingerprint import call_key
from day0.analyzers.recording.memo import Recipe, recipe_of
from day0.reference_ops.load import contract_of
from day0.reference_ops.signatures import tensors_in

__all__ = ["LifetimeRecorder", "Recipes", "Storage", "WeightMark", "watch_experts"]

Recipes = dict[tuple[Any, ...], Recipe | None]
"""How to make the results of a call again, by what the call is; None where they are more than fresh layouts."""


@dataclass(kw_only=True, slots=True)
class Storage:
    """One allocation. Times are numbers of operator calls."""

    op: str
    shape: tuple[int, ...]
    bytes: int
    begin: int
    end: int | None = None
    """None while it lives: at the end of a recording these are results."""
    sharded: bool = False
    """Tensor parallelism divides it: it comes from a weight that is cut by rows of its result."""
    of_weights: bool = False
    """Made from weights alone: a copy of them in another format."""
    of_experts: bool = False
    """Made from the weights of routed experts alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightMark:
    """What a recording has to know of a weight."""

    cut: str = ""
    """`out`: results are divided among the cards; `in`: results are sums over the cards, whole on each; `given`: no
    weight at all, but an argument of the model."""
    experts: bool = False


@dataclass(kw_only=True, slots=True)
class _State:
    storages: list[Storage] = field(default_factory=list)
    living: dict[int, Storage] = field(default_factory=dict)
    inside_experts: int = 0
    now: int = 0


class LifetimeRecorder(TorchDispatchMode):
    """Records allocations while it is active; `marks` tells weights from other tensors, by address of their storage.

    `recipes` keeps how results are made again: recorders of one model share it, and equal layers run once.
    """

    def __init__(self, marks: dict[int, WeightMark], recipes: Recipes | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.marks = marks
        self.recipes: Recipes = {} if recipes is None else recipes
        self.state = _State()

    @property
    def storages(self) -> list[Storage]:
        """Return all allocations in the order of their birth."""
        return self.state.storages

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # Tensors of other classes may hold values, and then the layout is not all that a result is.
        result = _run(func, args, kwargs) if types else self._made(func, args, kwargs)
        self.state.now += 1
        results = tuple(tensors_in((result,)))
        if results:
            given = [_address(tensor) for tensor in tensors_in((args, kwargs))]
            for tensor in results:
                self._see(func.name(), tensor, given)
        return result

    def _made(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = call_key(func, args, kwargs)
        recipe = self.recipes.get(key)
        if recipe is not None:
            return recipe.make()
        result = _run(func, args, kwargs)
        if key not in self.recipes:
            given = {_address(tensor) for tensor in tensors_in((args, kwargs))}
            shared = tuple(("",) for tensor in tensors_in((result,)) if _address(tensor) in given)
            self.recipes[key] = recipe_of(func, result, shared)
        return result

    def _see(self, op: str, tensor: torch.Tensor, given: list[int]) -> None:
        address = _address(tensor)
        if address in self.marks or address in self.state.living or address in given:
            return
        storage = tensor.untyped_storage()
        made = Storage(
            op=op, shape=tuple(tensor.shape), bytes=storage.nbytes(), begin=self.state.now, **self._origin(given)
        )
        self.state.storages.append(made)
        self.state.living[address] = made
        weakref.finalize(storage, _ended, self.state, address, made).atexit = False

    def _origin(self, given: list[int]) -> dict[str, bool]:
        marks = [self.marks[one] for one in given if one in self.marks]
        sources = [self.state.living[one] for one in given if one in self.state.living]
        others = len(given) - len(marks) - len(sources) + sum(one.cut == "given" for one in marks)
        of_weights = bool(given) and not others and all(one.of_weights for one in sources)
        of_experts = of_weights and (any(one.experts for one in marks) or any(one.of_experts for one in sources))
        whole = any(one.cut == "in" for one in marks)
        sharded = not whole and (any(one.cut == "out" for one in marks) or any(one.sharded for one in sources))
        return {
            "of_weights": of_weights,
            "of_experts": of_experts,
            "sharded": (sharded or self.state.inside_experts > 0) and not of_weights,
        }

    def results(self, tensors: list[torch.Tensor]) -> list[Storage]:
        """Return the recorded allocations that hold these tensors."""
        living = self.state.living
        return [living[address] for address in {_address(one) for one in tensors} if address in living]


@contextmanager
def watch_experts(model: nn.Module, is_experts: Callable[[str], bool], recorder: LifetimeRecorder) -> Iterator[None]:
    """Count what is allocated inside modules of routed experts as divided among cards, but not their result."""

    def enter(module: nn.Module, args: object) -> None:
        recorder.state.inside_experts += 1

    def leave(module: nn.Module, args: object, output: object) -> None:
        recorder.state.inside_experts -= 1
        for one in recorder.results(list(tensors_in((output,)))):
            one.sharded = False

    handles = []
    for path, module in model.named_modules():
        if is_experts(path):
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator; a contract of ours knows the shapes where torch's own meta kernel refuses a dtype."""
    try:
        return func(*args, **kwargs)
    except (RuntimeError, NotImplementedError):
        contract = contract_of(func.name())
        if contract is None or contract.fake is None:
            raise
        return contract.fake(*args, **kwargs)


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _ended(state: _State, address: int, made: Storage) -> None:
    made.end = state.now + 1
    if state.living.get(address) is made:
        del state.living[address]

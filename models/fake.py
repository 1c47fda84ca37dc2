"""Run a model without memory, knowing the values that follow from its token ids alone.

On the meta device no tensor has values, so a model that asks for one (`if mask.all()`, a loop over the experts that
tokens were sent to) stops there. Here floating-point tensors stay on meta; integers, booleans and small constants are
computed for real on the CPU and travel inside a meta tensor (`KnownTensor`). What follows from neither is assumed, by
rules that are the same on every run, and every assumption is counted so that the trace can say so:

- indices from a selection (`topk`, `sort`, `argmax`, `multinomial`) are spread evenly, as balanced routing would be;
- checks hold: `all` is true and `any` is false; another truth value is false, a number is one;
- what one `>` or `<` another is so everywhere, and so is any other mask.

The device of every tensor is `meta`, so a model takes the paths that it takes there: torch's own FakeTensorMode would
not do, since models take tracing paths when they see its tensors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

from day0.models.assumed import ASSUMPTIONS, SELECTIONS, assumed_scalar, filled, filled_like, spread
from day0.models.known import KNOWN_BYTES, META, KnownTensor, known, to_meta, to_real, wrapped

__all__ = ["FakeValues", "KnownTensor", "known"]
aten = torch.ops.aten
_UNINITIALISED = frozenset({"aten::empty", "aten::empty_strided", "aten::new_empty", "aten::empty_like"})
_RANDOM = frozenset({"aten::rand", "aten::randn", "aten::normal", "aten::rand_like", "aten::randn_like"})
_SAME_WHATEVER = frozenset(
    {
        "aten::zeros_like",
        "aten::ones_like",
        "aten::full_like",
        "aten::new_zeros",
        "aten::new_ones",
        "aten::new_full",
        "aten::empty_like",
        "aten::new_empty",
    }
)
"""Operators that ask a tensor for its shape and not for its values."""
_READS: dict[Any, Callable[[Any], Any]] = {
    torch.Tensor.item: lambda value: value,
    torch.Tensor.__bool__: bool,
    torch.Tensor.__int__: int,
    torch.Tensor.__index__: int,
    torch.Tensor.__float__: float,
}


class _KeepData(TorchFunctionMode):
    """What torch does to meta tensors before any operator is called, and a run without memory needs otherwise.

    It drops the values of `torch.tensor(data, device="meta")`, and refuses to read a number.
    """

    def __init__(self, assumed: Counter[str]) -> None:
        super().__init__()
        self._assumed = assumed

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and not isinstance(args[0] if args else None, torch.Tensor):
            args = tree_map(self._read, args)
            if kwargs.pop("device", None) is not None:
                # On meta no operator is called for it, and none is to be recorded.
                with _disable_current_modes():
                    return KnownTensor(torch.tensor(*args, **kwargs))
        elif func is torch.Tensor.new_tensor:
            args, kwargs = args[1:], {"dtype": args[0].dtype, **kwargs}
            kwargs.pop("device", None)
            return torch.tensor(*args, **kwargs)
        elif func in _READS and type(args[0]) is torch.Tensor and args[0].device.type == "meta":
            self._assumed["number"] += 1
            return _READS[func](assumed_scalar(args[0]))
        elif func is torch.Tensor.tolist and type(args[0]) is torch.Tensor and args[0].device.type == "meta":
            self._assumed["number"] += args[0].numel()
            return torch.full(args[0].shape, assumed_scalar(args[0])).tolist()
        return func(*args, **kwargs)

    def _read(self, value: Any) -> Any:
        """Return the numbers of a tensor that stands in a list of data."""
        if isinstance(value, KnownTensor):
            return value.held.tolist()
        if isinstance(value, torch.Tensor) and value.device.type == "meta":
            self._assumed["number"] += value.numel()
            return torch.full(value.shape, assumed_scalar(value)).tolist()
        return value


class FakeValues(TorchDispatchMode):
    """While active, tensors without values are on meta, and the others are known."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.assumed: Counter[str] = Counter()
        """What had to be assumed, and how often."""
        self._spoilt: dict[int, Any] = {}
        self._data = _KeepData(self.assumed)

    def __enter__(self) -> Self:
        """Begin: from here on there are no tensors with memory but known ones."""
        self._data.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: object) -> None:
        """End."""
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._data.__exit__(*exception)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one operator for real where all its values are known, else on meta."""
        kwargs = dict(kwargs or {})
        name = func.name().partition(".")[0]
        tensors = _tensors((args, kwargs))
        if all(self._known(tensor) for tensor in tensors) and self._worth_knowing(func, name, tensors, args, kwargs):
            return self._for_real(func, name, args, kwargs)
        answer = ASSUMPTIONS.get(name)
        if name in ("aten::all", "aten::any"):
            self.assumed[name.removeprefix("aten::")] += 1
            return filled_like(_plain(func, args, kwargs), name == "aten::all")
        if name in ("aten::gt", "aten::lt"):
            # Decided at once, so that a mask and its negation fit together.
            self.assumed["comparison"] += 1
            return filled_like(_plain(func, args, kwargs), True)
        if answer is not None:
            self.assumed[name.removeprefix("aten::")] += 1
            return answer(*args, **kwargs)
        return self._on_meta(func, name, args, kwargs)

    def _known(self, tensor: torch.Tensor) -> bool:
        if isinstance(tensor, KnownTensor):
            return tensor.held.untyped_storage()._cdata not in self._spoilt
        return tensor.device.type != "meta"

    def _worth_knowing(self, func: Any, name: str, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> bool:
        if tensors:
            if name in _RANDOM or _most_elements(tensors) * 8 <= KNOWN_BYTES:
                return name not in _RANDOM
        elif name in _RANDOM:
            return False
        try:
            result = _plain(func, args, kwargs)
        except (RuntimeError, NotImplementedError):
            return True  # its shape depends on its values, which are known
        results = _tensors(result)
        if not tensors and name in _UNINITIALISED and any(one.is_floating_point() for one in results):
            return False
        return all(one.numel() * one.element_size() <= KNOWN_BYTES for one in results)

    def _for_real(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        result = _computed(func, args, kwargs)
        if name in _UNINITIALISED:
            result.zero_()  # what happens to lie in memory would make two traces differ
        givers = {id(tensor.held): tensor for tensor in _tensors((args, kwargs)) if isinstance(tensor, KnownTensor)}
        return tree_map(lambda one: givers[id(one)] if id(one) in givers else wrapped(one), result)

    def _on_meta(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        args, kwargs = self._with_positions(name, args, kwargs)
        shells: dict[int, torch.Tensor] = {}

        def shell(value: Any) -> Any:
            made = to_meta(value)
            if made is not value and isinstance(made, torch.Tensor):
                shells[id(made)] = value
            return made

        shell_args, shell_kwargs = tree_map(shell, args), tree_map(shell, kwargs)
        result = func(*shell_args, **shell_kwargs)
        self._spoil_written(func, args, kwargs)
        if name in _SAME_WHATEVER:
            return filled(name, args, kwargs, result)
        if name in SELECTIONS:
            self.assumed[f"{name.removeprefix('aten::')} indices"] += 1
            return spread(args, kwargs, result)
        return tree_map(lambda one: shells.get(id(one), one) if isinstance(one, torch.Tensor) else one, result)

    def _spoil_written(self, func: Any, args: Any, kwargs: Any) -> None:
        """Forget the values of what was written to with values that are not known."""
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[number] if number < len(args) else kwargs.get(argument.name)
                for tensor in _tensors(value):
                    if isinstance(tensor, KnownTensor):
                        storage = tensor.held.untyped_storage()
                        self._spoilt[storage._cdata] = storage  # kept, so that no other gets its number

    def _with_positions(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Turn masks used as indices into the positions they select: meta cannot count them."""
        if name in ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
            positions: list[Any] = []
            for index in args[1]:
                positions.extend(self._positions(index))
            return (args[0], positions, *args[2:]), kwargs
        return args, kwargs

    def _positions(self, index: Any) -> list[Any]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            return [index]
        return list(self._true_places(index).unbind(1))

    def _true_places(self, mask: torch.Tensor) -> torch.Tensor:
        if self._known(mask):
            real: torch.Tensor = to_real(mask)
            return real.nonzero()
        self.assumed["mask"] += 1
        return torch.ones(mask.shape, dtype=torch.bool).nonzero()


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    real_args, real_kwargs = tree_map(to_real, args), tree_map(to_real, kwargs)
    try:
        return func(*real_args, **real_kwargs)
    except NotImplementedError:
        # The CPU counts whole numbers in floating point only (`histc`), and accelerators do both.
        dtypes = [one.dtype for one in _tensors(_plain(func, args, kwargs))]
        result = func(*tree_map(_to_float, real_args), **tree_map(_to_float, real_kwargs))
        return result.to(dtypes[0]) if isinstance(result, torch.Tensor) else result


def _to_float(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and not value.is_floating_point() else value


def _plain(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*tree_map(to_meta, args), **{**tree_map(to_meta, kwargs), **_placed(func)})


def _placed(func: Any) -> dict[str, torch.device]:
    takes = any(argument.name == "device" for argument in func._schema.arguments)
    return {"device": META} if takes and func.name() != "aten::to.device" else {}


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, (list, tuple)):
        return [tensor for item in tree for tensor in _tensors(item)]
    if isinstance(tree, dict):
        return [tensor for item in tree.values() for tensor in _tensors(item)]
    return []


def _most_elements(tensors: list[torch.Tensor]) -> int:
    """Return how many elements the result can have when all are broadcast against each other."""
    rank = max(tensor.dim() for tensor in tensors)
    shapes = [(1,) * (rank - tensor.dim()) + tuple(tensor.shape) for tensor in tensors]
    broadcast: int = math.prod(max(sizes) for sizes in zip(*shapes, strict=True))
    return max(broadcast, sum(tensor.numel() for tensor in tensors))

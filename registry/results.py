"""What an operator has to return, by its contract on meta, and whether an implementation returned that.

Looked at are how many results there are, their shapes and dtypes, and where they lie. Strides and values are not: the
numerics report judges those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from day0.errors import USER_ERRORS, Day0Error
from day0.reference_ops.load import contract_of
from day0.reference_ops.signatures import dtype_name, tensors_in
from day0.registry.choices import Slot

__all__ = ["Expected", "WrongResult", "expect", "refuse_wrong_result"]

NO_ANSWER: tuple[type[BaseException], ...] = (*USER_ERRORS, Day0Error)
"""What a shape function raises for a call that it cannot judge, such as one whose sizes depend on values."""

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_MOST_KEPT = 1024


class WrongResult(Day0Error):
    """An implementation returned something else than the contract of its operator says."""


Leaf = tuple[torch.Size, torch.dtype]


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The results of one call: shape and dtype of each, None for one that is no tensor; and where tensors lie."""

    leaves: tuple[Leaf | None, ...]
    device: torch.device
    free_dtypes: tuple[int, ...] = ()
    """Numbers of the results whose dtype is the device's own choice, by the operator's contract."""


def expect(
    overload: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device, memo: Any
) -> Expected | None:
    """Return what a call has to return, or None where its shape function cannot say.

    `memo` is a dict that keeps answers by signature. Call it before the implementation, which may resize arguments.
    """
    key = (_key(args), _key(kwargs))
    if key not in memo:
        if len(memo) >= _MOST_KEPT:
            memo.clear()
        memo[key] = _leaves_on_meta(overload, args, kwargs), _free_dtypes(overload)
    leaves, free = memo[key]
    if leaves is None:
        return None
    return Expected(leaves=leaves, device=_home(args, kwargs, device), free_dtypes=free)


def _free_dtypes(overload: torch._ops.OpOverload) -> tuple[int, ...]:
    contract = contract_of(overload.name())
    return contract.free_dtypes if contract is not None else ()


def _key(value: Any) -> Any:
    """Return something hashable that is equal for calls of one signature, and keeps no tensor alive."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape
    if isinstance(value, (list, tuple)):
        return tuple(_key(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, _key(value[name])) for name in sorted(value))
    # The type, because 2 and 2.0 are equal and lead to other dtypes.
    return (type(value), value) if isinstance(value, _PLAIN) else type(value)


def _leaves_on_meta(overload: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
    returns = overload._schema.returns
    if any(one.alias_info is not None and one.alias_info.is_write for one in returns):
        return None  # results are the arguments that were written; those have the shapes that they have
    try:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            return tuple(_leaves(overload(*_on_meta(args), **_on_meta(kwargs))))
    except NO_ANSWER:
        return None


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise NotImplementedError("only dense tensors have shape functions here")
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_on_meta(item) for item in value)
    if isinstance(value, dict):
        return {name: _on_meta(item) for name, item in value.items()}
    return value


def _leaves(result: Any) -> Iterator[Leaf | None]:
    for one in _flat(result):
        yield (one.shape, one.dtype) if isinstance(one, torch.Tensor) else None


def _flat(result: Any) -> Iterator[Any]:
    """Yield the results in order; None alone is no result, and one among others keeps its place."""
    if isinstance(result, (list, tuple)):
        for item in result:
            yield from _flat(item) if isinstance(item, (list, tuple)) else (item,)
    elif result is not None:
        yield result


def _home(args: Any, kwargs: Any, device: torch.device) -> torch.device:
    asked = kwargs.get("device")
    if isinstance(asked, torch.device):
        return asked
    return next((one.device for one in tensors_in((args, kwargs)) if one.device.type == device.type), device)


def refuse_wrong_result(
    slot: Slot, expected: Expected, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise WrongResult if a result is not what was expected."""
    got = list(_flat(result))
    fits = len(got) == len(expected.leaves) and all(
        _fits(one, leaf, expected.device, free=number in expected.free_dtypes)
        for number, (one, leaf) in enumerate(zip(got, expected.leaves, strict=True))
    )
    if fits:
        return
    given = ", ".join(_text(one.shape, one.dtype) for one in tensors_in((args, kwargs)))
    raise WrongResult(
        f"{slot.entry.operator}: {slot.entry.identity}",
        f"it returned {_texts(got, _got_text)}, and the contract says {_expected_texts(expected)}",
        facts=(f"it came from {slot.entry.origin}", f"called with {given or 'no tensors'}"),
        hint="repair the implementation, give it another version and lock again with `day0 register`",
    )


def _fits(got: Any, leaf: Leaf | None, device: torch.device, *, free: bool) -> bool:
    if leaf is None:
        return True  # a number, or a result that the shape function leaves out
    if not isinstance(got, torch.Tensor) or got.shape != leaf[0] or (got.dtype != leaf[1] and not free):
        return False
    # torch itself leaves some single numbers on the CPU, such as the seeds of attention.
    here = got.device
    same = here.type == device.type and (here.index == device.index or None in (here.index, device.index))
    return same or (got.dim() == 0 and here.type == "cpu")


def _texts(values: list[Any], text: Callable[[Any], str]) -> str:
    return ", ".join(text(one) for one in values) or "nothing"


def _got_text(one: Any) -> str:
    return f"{_text(one.shape, one.dtype)} on {one.device}" if isinstance(one, torch.Tensor) else type(one).__name__


def _expected_texts(expected: Expected) -> str:
    def text(leaf: Leaf | None) -> str:
        return f"{_text(*leaf)} on {expected.device}" if leaf else "something without a shape"

    return _texts(list(expected.leaves), text)


def _text(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{dtype_name(dtype)}{list(shape)}"

"""FLOPs and bytes of a contract: what they have to be, whatever the operator is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from day0.errors import Day0Error
from day0.reference_ops._spec import Operator, Sample
from day0.reference_ops.signatures import tensors_in
from tests.reference_ops.contract import change, written_positions


def check_counts(operator: Operator, sample: Sample) -> None:
    """FLOPs and bytes need no values, are not negative, and grow with the batch."""
    for name, count in (("flops", operator.flops), ("bytes", operator.bytes)):
        if count is None:
            continue
        where = f"{operator.name}: {name}"
        plain = count(*sample.args, **sample.kwargs)
        assert type(plain) is int and plain >= 0, where
        on_meta = [change(part, lambda one: one.to("meta")) for part in (sample.args, sample.kwargs)]
        assert count(*on_meta[0], **on_meta[1]) == plain, f"{where} depends on values"
        if sample.kind == "traced":
            _check_growth(operator, count, (on_meta[0], on_meta[1]), plain, where)


def _check_growth(operator: Operator, count: Callable[..., int], given: Any, plain: int, where: str) -> None:
    """Whatever makes the results larger makes the count larger."""
    size = _result_size(operator, given)
    assert size is not None, where
    # Whole numbers only where no tensor has a batch: more rows of an image can mean fewer frames of it.
    for ways in (_doubled_tensors(*given), _doubled_numbers(*given)):
        sizes = [(_result_size(operator, one), one) for one in ways]
        larger = [one for found, one in sizes if found is not None and found > size]
        for args, kwargs in larger:
            assert count(*args, **kwargs) > plain, f"{where} does not grow with the batch"
        if larger:
            return
    raise AssertionError(f"{where}: nothing makes the results larger")


def _result_size(operator: Operator, given: Any) -> int | None:
    """Elements of the results, or of what goes into what is written; None where the contract refuses the arguments."""
    try:
        out = (operator.fake or operator.reference)(*given[0], **given[1])
    except (Day0Error, RuntimeError):
        return None
    places = written_positions(operator)
    if places:  # how much is written is a matter of the other arguments
        return sum(
            one.numel() for place, value in enumerate(given[0]) if place not in places for one in tensors_in(value)
        )
    return sum(one.numel() for one in tensors_in(out))


def _doubled_numbers(args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Twice each whole number."""
    for place, value in enumerate(args):
        if type(value) is int:
            yield (*args[:place], 2 * value, *args[place + 1 :]), kwargs


def _doubled_tensors(args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Twice the first dimension of all that share its size, and twice one dimension of all."""

    shapes = [one.shape for one in tensors_in((args, kwargs))]
    for size in sorted({shape[0] for shape in shapes if shape}):

        def longer(tensor: torch.Tensor, size: int = size) -> torch.Tensor:
            return _twice(tensor, 0) if tensor.dim() and tensor.shape[0] == size else tensor

        yield change(args, longer), change(kwargs, longer)
    for dim in (0, 1):

        def larger(tensor: torch.Tensor, dim: int = dim) -> torch.Tensor:
            return _twice(tensor, dim) if tensor.dim() > dim else tensor

        yield change(args, larger), change(kwargs, larger)


def _twice(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.cat((tensor, tensor), dim=dim)

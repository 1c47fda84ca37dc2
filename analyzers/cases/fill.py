"""Values for the arguments of one signature, valid by construction."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.copies import storage_row
from day0.records import ListValue, Signature, TensorValue, Value
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import materialise, tensors_in

__all__ = ["make_inputs"]


def make_inputs(case: Case, contract: Operator | None) -> CaseInputs | Unfillable:
    """Allocate and fill the arguments of a case.

    The operator's own maker comes first; else floats are drawn by regime and integers from the traced range.
    An integer input whose valid values nobody knows makes the case unfillable: a made-up index proves nothing.
    """
    args, kwargs = materialise(case.signature, "cpu")
    generator = case.generator()
    for tensor in tensors_in((args, kwargs)):
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            _fill_values(tensor, case.regime, generator)
    if contract is not None and contract.fill is not None:
        contract.fill(args, kwargs, generator)
        return CaseInputs(args=args, kwargs=kwargs)
    values = [*case.signature.args, *(case.signature.kwargs[name] for name in kwargs)]
    pairs = [
        pair for value, made in zip(values, [*args, *kwargs.values()], strict=True) for pair in _pairs(value, made)
    ]
    for value, tensor in pairs:
        if not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool:
            limits = _limits(case.signature, value)
            if limits is None:
                return Unfillable(reason=f"nobody knows valid values for its {value.dtype} input {list(value.shape)}")
            _fill_integers(tensor, limits, generator)
            if value.range is None:
                _plant_large(case.signature, tensor)
    return CaseInputs(args=args, kwargs=kwargs)


def _pairs(value: Value, made: Any) -> list[tuple[TensorValue, torch.Tensor]]:
    if isinstance(value, TensorValue):
        return [(value, made)]
    if isinstance(value, ListValue):
        return [pair for item, inner in zip(value.items, made, strict=True) for pair in _pairs(item, inner)]
    return []


_ARITHMETIC = frozenset(
    {
        "_to_copy",
        "_unsafe_view",
        "abs",
        "add",
        "alias",
        "all",
        "amax",
        "amin",
        "any",
        "argsort",
        "as_strided",
        "bitwise_and",
        "bitwise_not",
        "bitwise_or",
        "bitwise_xor",
        "cat",
        "clamp",
        "clamp_min",
        "clone",
        "constant_pad_nd",
        "copy",
        "cumsum",
        "detach",
        "div",
        "empty_like",
        "eq",
        "expand",
        "fill",
        "flip",
        "floor_divide",
        "full_like",
        "ge",
        "gt",
        "histc",
        "le",
        "logical_and",
        "logical_not",
        "logical_or",
        "lt",
        "masked_fill",
        "maximum",
        "mean",
        "minimum",
        "mul",
        "ne",
        "neg",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones_like",
        "permute",
        "remainder",
        "repeat",
        "reshape",
        "roll",
        "rsub",
        "select",
        "slice",
        "sort",
        "split",
        "split_with_sizes",
        "squeeze",
        "stack",
        "sub",
        "sum",
        "t",
        "transpose",
        "tril",
        "triu",
        "unbind",
        "unsqueeze",
        "view",
        "where",
        "zero",
        "zeros_like",
    }
)
"""Operators for which any small integer is valid: they compute with values and do not look anything up by them."""

_DIVIDES = frozenset({"floor_divide", "div", "remainder"})


def _limits(signature: Signature, value: TensorValue) -> tuple[int, int] | None:
    if value.range is not None:
        return value.range
    name = signature.op.removeprefix("aten::").partition(".")[0].removesuffix("_")
    if not signature.op.startswith("aten::") or name not in _ARITHMETIC:
        return None
    # Ids and counts are small; signs matter to comparisons, sums and divisions.
    low = 1 if name in _DIVIDES else 0 if value.dtype.startswith("uint") else -100
    return (low, 100)


def _plant_large(signature: Signature, tensor: torch.Tensor) -> None:
    """Put in two numbers that float32 cannot tell apart: integers must not travel as floats."""
    name = signature.op.removeprefix("aten::").partition(".")[0].removesuffix("_")
    base = storage_row(tensor)
    if tensor.dtype in (torch.int32, torch.int64) and name not in _DIVIDES and base.numel() > 2:
        base[:2] = torch.tensor([2**24 + 1, 2**24 + 2])


_BYTES_ONLY = (torch.float4_e2m1fn_x2, torch.float8_e8m0fnu)
"""Dtypes that torch cannot cast to: any byte but 255, which is E8M0's NaN, is a value."""


def _fill_integers(tensor: torch.Tensor, limits: tuple[int, int], generator: torch.Generator) -> None:
    base = storage_row(tensor)
    base.copy_(torch.randint(limits[0], limits[1] + 1, base.shape, generator=generator))


def _fill_values(tensor: torch.Tensor, regime: str, generator: torch.Generator) -> None:
    base = storage_row(tensor)
    base = torch.view_as_real(base) if tensor.is_complex() else base
    if tensor.dtype == torch.bool:
        base.copy_(torch.rand(base.shape, generator=generator) < 0.5)
        return
    if tensor.dtype in _BYTES_ONLY:
        bytes_ = base.view(torch.uint8)
        bytes_.copy_(torch.randint(0, 255, bytes_.shape, generator=generator))
        return
    values = torch.randn(base.shape, generator=generator, dtype=torch.float32)
    if regime == "wide":
        values = values * 10.0 ** (torch.rand(base.shape, generator=generator) * 6.0 - 3.0)
    elif regime == "ties":
        values = (values * 2.0).round().clamp(-2.0, 2.0) * 0.5
    base.copy_(values)

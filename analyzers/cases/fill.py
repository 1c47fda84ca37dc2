"""Values for the arguments of one signature, valid by construction."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.captured import read_captured
from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.copies import storage_row
from day0.analyzers.cases.errors import MAKE_ERRORS
from day0.analyzers.cases.forms._form import load_forms
from day0.analyzers.cases.integers import fill_range, fill_rules, limits_of, plant_large, rules_of
from day0.analyzers.cases.refusals._refusal import load_refusals
from day0.analyzers.cases.regimes._regime import Regime, load_regimes
from day0.analyzers.cases.valid import mismatch
from day0.records import ListValue, Signature, TensorValue, Value
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import materialise, tensors_in

__all__ = ["make_inputs"]


def make_inputs(case: Case, contract: Operator | None) -> CaseInputs | Unfillable:
    """Allocate and fill the arguments of a case, and hold them against its signature.

    Floats are drawn by regime; integers by the operator's own maker, else by the rules of its schema, else from the
    traced range. An integer input whose valid values nobody knows makes the case unfillable: a made-up index proves
    nothing. So does a maker that does not take this call.
    """
    if case.captured:
        return read_captured(case)
    form = load_forms()[case.form.partition(".")[0]] if case.form != "traced" else None
    if form is not None and form.inputs is not None:
        return form.inputs(case, contract)
    args, kwargs = materialise(case.signature, "cpu")
    try:
        reason = _fill(case, contract, args, kwargs)
        if case.refusal and not reason:
            load_refusals()[case.refusal].spoil(case.signature, args, kwargs)
    except MAKE_ERRORS as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = f"its maker does not take this call: {lines[0][:160]}"
    if reason:
        return Unfillable(reason=reason)
    if form is not None and form.surroundings:
        _poison(case.signature, (args, kwargs))
    if found := mismatch(case.signature, args, kwargs, ranges=_within_range(case, contract)):
        return Unfillable(reason=f"what was built is not the traced call: {found}")
    return CaseInputs(args=args, kwargs=kwargs)


def _within_range(case: Case, contract: Operator | None) -> bool:
    """Say whether integers have to lie where they lay in the trace: not where a maker or a rule knows all valid ones."""
    known = (contract is not None and contract.fill is not None) or bool(rules_of(case.signature))
    return not known and not case.refusal and case.regime != "large_integers"


def _fill(case: Case, contract: Operator | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Write the values. Returns why that is not possible, or nothing."""
    regime, generator = load_regimes()[case.regime], case.generator()
    for tensor in tensors_in((args, kwargs)):
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            _fill_values(tensor, regime, generator)
    if (
        regime.arrange is not None
        and not regime.last
        and (why := regime.arrange(case.signature, args, kwargs, generator))
    ):
        return why
    if contract is not None and contract.fill is not None:
        contract.fill(args, kwargs, generator)
    elif why := _fill_whole(case.signature, args, kwargs, generator):
        return why
    return regime.arrange(case.signature, args, kwargs, generator) if regime.arrange is not None and regime.last else ""


def _fill_whole(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> str:
    done = fill_rules(signature, args, kwargs, generator)
    values = [*signature.args, *(signature.kwargs[name] for name in kwargs)]
    pairs = [
        pair for value, made in zip(values, [*args, *kwargs.values()], strict=True) for pair in _pairs(value, made)
    ]
    for value, tensor in pairs:
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool or id(tensor) in done:
            continue
        limits = limits_of(signature, value)
        if limits is None:
            return f"nobody knows valid values for its {value.dtype} input {list(value.shape)}"
        fill_range(tensor, limits, generator)
        if value.range is None:
            plant_large(signature, tensor)
    return ""


def _pairs(value: Value, made: Any) -> list[tuple[TensorValue, torch.Tensor]]:
    if isinstance(value, TensorValue):
        return [(value, made)]
    if isinstance(value, ListValue):
        return [pair for item, inner in zip(value.items, made, strict=True) for pair in _pairs(item, inner)]
    return []


_BYTES_ONLY = (torch.float4_e2m1fn_x2, torch.float8_e8m0fnu)
"""Dtypes that torch cannot cast to: any byte but 255, which is E8M0's NaN, is a value."""


def _fill_values(tensor: torch.Tensor, regime: Regime, generator: torch.Generator) -> None:
    base = storage_row(tensor)
    base = torch.view_as_real(base) if tensor.is_complex() else base
    if tensor.dtype == torch.bool:
        base.copy_(torch.rand(base.shape, generator=generator) < 0.5)
    elif tensor.dtype in _BYTES_ONLY:
        bytes_ = base.view(torch.uint8)
        bytes_.copy_(torch.randint(0, 255, bytes_.shape, generator=generator))
    else:
        base.copy_(regime.values(base, generator))


def _poison(signature: Signature, arguments: Any) -> None:
    """Write NaN, and the largest integer, wherever no argument reaches: who reads past a view reads that."""
    by_storage: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors_in(arguments):
        by_storage.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    for views in by_storage.values():
        base = storage_row(views[0])
        outside = torch.ones(base.shape, dtype=torch.bool)
        if any(one.dtype != views[0].dtype for one in views) or base.dtype in _BYTES_ONLY:
            continue
        for view in views:
            outside.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(False)
        if base.is_floating_point() and base.element_size() == 1:
            # torch has no masked_fill for these.
            base.copy_(torch.where(outside, float("nan"), base.float()))
        else:
            base.masked_fill_(outside, _poison_of(base.dtype))


def _poison_of(dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return True
    return float("nan") if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype).max

"""Which rule judges which result of which operator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.judging.exact import exact
from day0.analyzers.judging.floats import floats
from day0.analyzers.judging.index_sets import index_sets
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.kinds import is_move, short_name, without_values
from day0.analyzers.judging.layout import layout
from day0.analyzers.judging.non_finite import non_finite
from day0.analyzers.judging.reference import Reference
from day0.analyzers.terms import summed_terms
from day0.records import Signature
from day0.reference_ops._spec import DEFAULT_TOLERANCE, Operator, Tolerance
from day0.reference_ops.signatures import tensors_in

__all__ = ["compare_results"]

_CHOICES = frozenset({"argmax", "argmin", "max", "min"})
"""Operators that return the place of one value along a dimension; which of two equal values is not specified."""

_OWN_STRIDES = ("convolution", "_scaled_dot_product", "cudnn", "mkldnn")
"""Names that begin so: the backend chooses the strides of its results."""

_TRANSCENDENTAL = frozenset(
    {"exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "tanh", "sigmoid", "silu", "erf", "gelu"}
)
_POWERS = frozenset({"pow", "rsqrt"})


def compare_results(
    signature: Signature,
    inputs: CaseInputs,
    got: tuple[torch.Tensor, ...],
    reference: Reference,
    contract: Operator | None,
    device: torch.device,
) -> Judgement:
    """Judge every result: its layout first, then its values. Returns the first failure, else the nearest to its limit."""
    if len(got) != len(reference.golden):
        return Judgement(passed=False, rule="layout", reason=f"{len(got)} results, expected {len(reference.golden)}")
    worst = Judgement(passed=True, rule="layout")
    for number, tensor in enumerate(got):
        place = _layout(signature, tensor, reference, number, contract, device)
        if not place.passed:
            return place
        if without_values(signature.op):
            continue
        value = _values(signature, inputs, tensor.detach().cpu(), number, reference, contract)
        if not value.passed:
            return value
        if (value.error or 0.0) >= (worst.error or 0.0):
            worst = value
    return worst


def _layout(
    signature: Signature,
    tensor: torch.Tensor,
    reference: Reference,
    number: int,
    contract: Operator | None,
    device: torch.device,
) -> Judgement:
    if reference.same_dtype is None:
        return Judgement(passed=True, rule="layout")
    free = contract is not None and number in contract.free_dtypes
    strides = not short_name(signature.op).startswith(_OWN_STRIDES)
    return layout(tensor, reference.same_dtype[number], device.type, free_dtype=free, strides=strides)


def _values(
    signature: Signature,
    inputs: CaseInputs,
    got: torch.Tensor,
    number: int,
    reference: Reference,
    contract: Operator | None,
) -> Judgement:
    golden = reference.golden[number]
    same = reference.same_dtype[number] if reference.same_dtype else None
    if contract is not None and contract.comparison in ("index_set", "index_order"):
        return _indices(contract, inputs, got, golden, number)
    name = short_name(signature.op)
    if not got.is_floating_point() and not got.is_complex():
        if name in _CHOICES and got.dtype == torch.int64 and next(tensors_in(inputs.args)).dtype != torch.int64:
            return _choice(inputs, got, golden)
        return exact(got, golden.to(got.dtype))
    expected = same if same is not None else golden.to(got.dtype)
    places = non_finite(got, expected)
    if not places.passed:
        return places
    if is_move(signature.op) or (contract is not None and contract.comparison == "exact"):
        return exact(got, expected.to(got.dtype))
    terms = summed_terms(name, list(tensors_in((inputs.args, inputs.kwargs))), got)
    tolerance = contract.tolerance if contract else _tolerance(name)
    return floats(got, golden, same, tolerance, terms=terms, condition=reference.condition)


def _tolerance(name: str) -> Tolerance:
    if name in _POWERS:
        reason = "vendors document up to 4 ULP for powers in float32; two functions in a row where there is no own one"
        return replace(DEFAULT_TOLERANCE, ulps=4.0, reason=reason)
    if name in _TRANSCENDENTAL:
        reason = "vendors document up to 2 ULP for these functions in float32"
        return replace(DEFAULT_TOLERANCE, ulps=2.0, reason=reason)
    return DEFAULT_TOLERANCE


def _indices(contract: Operator, inputs: CaseInputs, got: torch.Tensor, golden: torch.Tensor, number: int) -> Judgement:
    """Indices into the first argument, judged by the very scores that were given: equal ones may change places."""
    scores = next(tensors_in(inputs.args))
    dim = contract.choice_dim(inputs.args, inputs.kwargs) if contract.choice_dim else -1
    got, scores, golden = (
        tensor.movedim(dim, -1) if tensor.dim() else tensor[None] for tensor in (got, scores, golden)
    )
    ordered = contract.comparison == "index_order" and not _unsorted(inputs)
    if number != contract.index_output:
        values = golden.to(got.dtype)
        return exact(*(one if ordered else one.sort(dim=-1).values for one in (got, values)))
    if inputs.kwargs.get("stable"):
        return exact(got, golden)
    return index_sets(got, scores, golden, margin=0.0, ordered=ordered)


def _unsorted(inputs: CaseInputs) -> bool:
    """Say whether top-k was asked for in any order: `sorted=False`, the fifth argument."""
    asked: Any = inputs.kwargs.get("sorted", inputs.args[4] if len(inputs.args) > 4 else True)
    return asked is False


def _choice(inputs: CaseInputs, got: torch.Tensor, golden: torch.Tensor) -> Judgement:
    """Compare the values at the chosen places."""
    scores = next(tensors_in(inputs.args))
    dim = inputs.args[1] if len(inputs.args) > 1 else inputs.kwargs.get("dim")
    if dim is None:
        scores, dim = scores.reshape(-1), 0
        got, golden = got.reshape(-1), golden.reshape(-1)
    elif got.dim() < scores.dim():
        got, golden = got.unsqueeze(dim), golden.unsqueeze(dim)
    if bool(((got < 0) | (got >= max(1, scores.shape[dim]))).any()):
        return Judgement(passed=False, rule="index_set", reason="an index is out of range")
    return replace(exact(scores.gather(dim, got), scores.gather(dim, golden)), rule="index_set")

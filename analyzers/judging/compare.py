"""Which rule judges which result of which operator, in the order of docs/numerics.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.judging.aliasing import aliasing, shared_memory
from day0.analyzers.judging.calls import first_float, named, several
from day0.analyzers.judging.choices import Choice, choice_of, judge_choice
from day0.analyzers.judging.draws import draws, judge_draws
from day0.analyzers.judging.exact import exact, exact_by_either
from day0.analyzers.judging.floats import floats
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.kinds import (
    adds_into_memory,
    has_own_strides,
    is_fresh_memory,
    is_move,
    is_pointwise,
    keeps_sign_of_zero,
    short_name,
)
from day0.analyzers.judging.layout import layout
from day0.analyzers.judging.nearby import exact_or_nearby
from day0.analyzers.judging.non_finite import non_finite
from day0.analyzers.judging.quantised import quantised
from day0.analyzers.judging.reference import Reference
from day0.analyzers.judging.routes import routes
from day0.analyzers.judging.scales import largest_so_far, most_additions, partial_sums
from day0.analyzers.judging.ulps import came_from, documented, tolerance_of
from day0.analyzers.judging.unspecified import unspecified
from day0.analyzers.terms import RUNNING, levels_of, stands_alone, summed_terms
from day0.records import Signature
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import resolve

__all__ = ["compare_results"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """Everything that rules judge by."""

    signature: Signature
    inputs: CaseInputs
    got: tuple[torch.Tensor, ...]
    """On the CPU."""
    reference: Reference
    contract: Operator | None


def compare_results(
    signature: Signature,
    inputs: CaseInputs,
    got: tuple[torch.Tensor, ...],
    reference: Reference,
    contract: Operator | None,
    device: torch.device,
    *,
    moved: CaseInputs | None = None,
) -> Judgement:
    """Judge every result: layout and memory first, then values. Returns the first failure, else the nearest to its limit.

    `moved` are the arguments on the device: with them, whose memory results share is judged too.
    """
    if len(got) != len(reference.golden):
        return Judgement(passed=False, rule="layout", reason=f"{len(got)} results, expected {len(reference.golden)}")
    notes: list[str] = []
    worst = Judgement(passed=True, rule="layout")
    for found in _judgements(signature, inputs, got, reference, contract, device, moved):
        if not found.passed:
            return replace(found, notes=tuple(dict.fromkeys((*notes, *found.notes))))
        notes += found.notes
        if (found.error or 0.0) >= (worst.error or 0.0):
            worst = found
    return replace(worst, notes=tuple(dict.fromkeys(notes)))


def _judgements(
    signature: Signature,
    inputs: CaseInputs,
    got: tuple[torch.Tensor, ...],
    reference: Reference,
    contract: Operator | None,
    device: torch.device,
    moved: CaseInputs | None,
) -> Iterator[Judgement]:
    for number, tensor in enumerate(got):
        yield _layout(signature, inputs, tensor, reference, number, contract, device)
    if moved is not None and reference.shared is not None:
        yield aliasing(shared_memory(got, several(moved)), reference.shared)
    call = _Call(
        signature=signature,
        inputs=inputs,
        got=tuple((one.detach() if one.requires_grad else one).cpu() for one in got),
        reference=reference,
        contract=contract,
    )
    if draws(signature.op, inputs):
        yield judge_draws(signature.op, inputs, call.got)
    elif not is_fresh_memory(signature.op):
        choice = choice_of(signature.op, inputs, call.got, contract)
        # Places first: values can only belong to places that are right.
        first = choice.index_output if choice else 0
        for number in sorted(range(len(got)), key=lambda one: one != first):
            yield from _values(call, choice, number)


def _layout(
    signature: Signature,
    inputs: CaseInputs,
    tensor: torch.Tensor,
    reference: Reference,
    number: int,
    contract: Operator | None,
    device: torch.device,
) -> Judgement:
    if reference.same_dtype is None:
        return Judgement(passed=True, rule="layout")
    free = contract is not None and number in contract.free_dtypes
    return layout(
        tensor,
        reference.same_dtype[number],
        device.type,
        free_dtype=free,
        strides=not has_own_strides(signature.op, inputs),
        is_view=resolve(signature.op).is_view,
    )


def _values(call: _Call, choice: Choice | None, number: int) -> Iterator[Judgement]:
    """Judge the values of one result; elements that nobody promises are taken from the expected one first."""
    got, expected = call.got[number], _expected(call, number)
    for mask, reason in unspecified(call.signature.op, call.inputs, got):
        got = torch.where(mask, expected.to(got.dtype), got)
        yield Judgement(passed=True, rule="unspecified", notes=(f"{int(mask.sum())} elements left out: {reason}",))
    special = _by_contract(call, call.contract, number) if call.contract is not None else None
    if special is not None:
        yield special
        return
    if choice is not None:
        yield judge_choice(choice, call.got, call.reference.golden, number)
        return
    golden = call.reference.golden[number]
    if not got.is_floating_point() and not got.is_complex():
        yield exact_by_either(got, expected, golden)
        return
    is_exact = _is_exact(call)
    either = False if is_exact else partial(_sums_infinities, call)
    yield non_finite(got, expected, golden=golden, any_kind=either)
    if is_exact:
        yield exact(got, expected.to(got.dtype), zero_sign=keeps_sign_of_zero(call.signature.op))
    else:
        yield _floats(call, got, number)


def _expected(call: _Call, number: int) -> torch.Tensor:
    same = call.reference.same_dtype
    return same[number] if same is not None else call.reference.golden[number].to(call.got[number].dtype)


def _sums_infinities(call: _Call) -> bool:
    """Say whether infinite inputs meet in one result, so that their order decides between NaN and infinity."""
    floats_in = [one for one in several(call.inputs) if one.is_floating_point() and one.itemsize > 1]
    return not is_pointwise(call.signature.op) and any(bool(torch.isinf(one).any()) for one in floats_in)


def _is_exact(call: _Call) -> bool:
    if adds_into_memory(call.signature.op, call.inputs):
        return False
    return is_move(call.signature.op) or (call.contract is not None and call.contract.comparison == "exact")


def _by_contract(call: _Call, contract: Operator, number: int) -> Judgement | None:
    """Judge by the comparison that only a contract can ask for; None where it asks for none of these."""
    same = call.reference.same_dtype or call.reference.golden
    if contract.routing is not None:
        return routes(call.got, call.reference.golden, call.inputs, contract, contract.routing, number)
    if contract.quantisation is not None:
        return quantised(call.got, same, call.inputs, contract, contract.quantisation, number)
    if contract.nearby is not None:
        return exact_or_nearby(call.got[number], _expected(call, number), call.inputs, contract, number)
    return None


def _floats(call: _Call, got: torch.Tensor, number: int) -> Judgement:
    op, reference = call.signature.op, call.reference
    name, golden = short_name(op), reference.golden[number]
    terms = summed_terms(name, several(call.inputs), got)
    levels = levels_of(name, got.dtype, terms)
    if adds_into_memory(op, call.inputs):
        terms = levels = most_additions(op, call.inputs)
    squares = reference.squares[number] if reference.squares else None
    sums = partial_sums(op, golden, squares, terms)
    if name in RUNNING and golden.is_floating_point():
        so_far = largest_so_far(golden.to(torch.float64), named(op, call.inputs)["dim"])
        sums = torch.maximum(sums, so_far) if sums is not None else golden.to(torch.float64).abs()
    source = first_float(call.inputs)
    tolerance = call.contract.tolerance if call.contract and not _is_copied(call) else tolerance_of(name)

    def displaced() -> torch.Tensor | None:
        moved = reference.displaced() if reference.displaced is not None else None
        return moved[number] if moved is not None else None

    return floats(
        got,
        golden,
        reference.same_dtype[number] if reference.same_dtype else None,
        tolerance,
        terms=terms,
        rounded=reference.rounded[number] if reference.rounded else None,
        partial=sums,
        among=came_from(name, source) if call.contract is None and source is not None else None,
        pointwise=(call.contract is None and is_pointwise(op)) or stands_alone(name),
        levels=levels,
        displaced=None if documented(name) else displaced,
    )


def _is_copied(call: _Call) -> bool:
    """Say whether the contract's tolerance is that of a copy, though this call adds up."""
    return call.contract is not None and call.contract.comparison == "exact"

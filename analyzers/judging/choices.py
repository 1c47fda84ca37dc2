"""Which rule indices of aten operators are judged by: by what stands at the place, where the place itself is free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.judging.calls import named
from day0.analyzers.judging.exact import exact
from day0.analyzers.judging.index_sets import index_sets, values_at
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.kinds import short_name
from day0.analyzers.judging.words import first_true, text_at
from day0.reference_ops._spec import Operator

__all__ = ["Choice", "choice_of", "judge_choice"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """How an operator chooses: several places of a row in an order, or one place."""

    source: torch.Tensor
    """What is chosen from, with the dimension last."""
    dim: int
    index_output: int
    several: bool
    ordered: bool = True
    stable: bool = False
    flat: bool = False
    """Whether the source was flattened, as there is no dimension."""
    within_prefix: bool = False
    """Whether the place must not lie behind the result: running maxima."""


_ONE = frozenset({"argmax", "argmin", "max", "min", "median", "nanmedian", "mode", "kthvalue"})
_RUNNING = frozenset({"cummax", "cummin"})
_ORDERS = frozenset({"sort", "argsort", "topk", "msort"})


def choice_of(op: str, inputs: CaseInputs, got: tuple[torch.Tensor, ...], contract: Operator | None) -> Choice | None:
    """Return how this call chooses; None for one that does not choose places."""
    name, given = short_name(op), named(op, inputs)
    source = given.get("self")
    if not isinstance(source, torch.Tensor):
        return None
    if name in _ORDERS or (contract is not None and contract.comparison in ("index_set", "index_order")):
        return _order(name, given, source, inputs, got, contract)
    whole = [place for place, one in enumerate(got) if one.dtype == torch.int64]
    if name in _RUNNING or (name in _ONE and whole and (name.startswith("arg") or len(got) == 2)):
        return _one(name, given, source, whole[-1])
    return None


def _order(
    name: str,
    given: dict[str, Any],
    source: torch.Tensor,
    inputs: CaseInputs,
    got: tuple[torch.Tensor, ...],
    contract: Operator | None,
) -> Choice:
    dim = contract.choice_dim(inputs.args, inputs.kwargs) if contract and contract.choice_dim else given.get("dim", -1)
    ordered = given.get("sorted") is not False and (contract is None or contract.comparison == "index_order")
    return Choice(
        source=_last(source, dim),
        dim=dim,
        index_output=contract.index_output if contract else len(got) - 1,
        several=True,
        ordered=ordered,
        stable=bool(given.get("stable")),
    )


def _one(name: str, given: dict[str, Any], source: torch.Tensor, place: int) -> Choice:
    dim: int | None = given.get("dim")
    return Choice(
        source=source.reshape(-1) if dim is None else _last(source, dim),
        dim=dim or 0,
        index_output=place,
        several=False,
        flat=dim is None,
        within_prefix=name in _RUNNING,
    )


def judge_choice(
    choice: Choice, got: tuple[torch.Tensor, ...], golden: tuple[torch.Tensor, ...], number: int
) -> Judgement:
    """Judge one result of an operator that chooses: the places by what stands there, the values by the places."""
    indices, right = (_shaped(choice, one[choice.index_output]) for one in (got, golden))
    if number == choice.index_output:
        if choice.stable:
            return exact(got[number], golden[number])
        return _places(choice, indices, right)
    values, wanted = (_shaped(choice, one[number]) for one in (got, golden))
    if number < choice.index_output and _in_range(choice, indices):
        paired = values_at(values, indices, choice.source)
        if not paired.passed:
            return paired
    unordered = choice.several and not choice.ordered
    wanted = wanted.to(values.dtype)
    return exact(*(one.sort(dim=-1).values for one in (values, wanted))) if unordered else exact(values, wanted)


def _places(choice: Choice, indices: torch.Tensor, right: torch.Tensor) -> Judgement:
    if choice.several:
        return index_sets(indices, choice.source, right, margin=0.0, ordered=choice.ordered)
    count = choice.source.shape[-1]
    limit = torch.arange(count).expand(indices.shape) + 1 if choice.within_prefix else torch.tensor(max(1, count))
    outside = (indices < 0) | (indices >= limit)
    if bool(outside.any()):
        index = first_true(outside)
        reason = f"an index is out of range: {text_at(indices, index)} of {count}"
        return Judgement(
            passed=False, rule="index_set", reason=reason, worst_index=index, worst_got=text_at(indices, index)
        )
    if not count:
        return Judgement(passed=True, rule="index_set")
    found = exact(choice.source.gather(-1, indices), choice.source.gather(-1, right))
    reason = "" if found.passed else f"what stands at the chosen places differs: {found.reason}"
    return Judgement(
        passed=found.passed,
        rule="index_set",
        reason=reason,
        error=found.error,
        limit=0.0,
        needed=found.needed,
        worst_index=found.worst_index,
        worst_got=found.worst_got,
        worst_expected=found.worst_expected,
    )


def _in_range(choice: Choice, indices: torch.Tensor) -> bool:
    return not bool(((indices < 0) | (indices >= choice.source.shape[-1])).any())


def _last(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return tensor.movedim(dim, -1) if tensor.dim() else tensor[None]


def _shaped(choice: Choice, result: torch.Tensor) -> torch.Tensor:
    """Bring a result to the form of the source: the chosen dimension last."""
    if choice.flat:
        return result.reshape(-1)
    if choice.several or choice.within_prefix:
        return _last(result, choice.dim)
    rank = choice.source.dim()
    if result.dim() < rank:
        return result[..., None]
    return _last(result, choice.dim) if result.dim() == rank and result.dim() else result.reshape(-1, 1)[:, 0][None]

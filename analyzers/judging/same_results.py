"""Two calls that have to agree: repeated, with another batch, through another view, with another seed.

Who makes the calls is no matter of this file; it says what their results must have in common.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from day0.analyzers.judging.exact import differs
from day0.analyzers.judging.floats import relative_l2
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.kinds import short_name
from day0.analyzers.judging.words import first_true, readable, text_at
from day0.reference_ops._spec import Operator

__all__ = ["draws_differ", "may_vary", "same_batch", "same_bits", "same_rule"]

Results = tuple[torch.Tensor, ...]

_UNORDERED = dict.fromkeys(
    ("_index_put_impl", "bincount", "index_add", "index_put", "put", "scatter_add", "scatter_reduce"),
    "torch documents it as not deterministic: additions to one place in memory in no order",
)
"""From the documentation of torch.use_deterministic_algorithms: what CUDA does otherwise when it is asked to."""


def may_vary(op: str, contract: Operator | None) -> str:
    """Return why two equal calls may give different bits; nothing where they must not."""
    if contract is not None and not contract.deterministic:
        return f"the contract of {contract.name} says so"
    return _UNORDERED.get(short_name(op), "")


def same_bits(first: Results, second: Results, *, rule: str = "repeat", exempt: str = "") -> Judgement:
    """Two calls give the same bits, NaN equal to NaN and 0 unequal to -0.

    `exempt` is a reason why they need not: a difference is then noted, and no failure. Shapes and dtypes are never exempt.
    """
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        one, other = one.detach().cpu(), other.detach().cpu()
        if one.shape != other.shape or one.dtype != other.dtype:
            reason = f"result {number} is {one.dtype} {list(one.shape)} once and {other.dtype} {list(other.shape)} then"
            return Judgement(passed=False, rule=rule, reason=reason)
        wrong = differs(one, other, zero_sign=True)
        if bool(wrong.any()):
            return _different(readable(one), readable(other), wrong, number, rule, exempt)
    return Judgement(passed=True, rule=rule, error=0.0, limit=0.0)


def _different(
    one: torch.Tensor, other: torch.Tensor, wrong: torch.Tensor, number: int, rule: str, exempt: str
) -> Judgement:
    index = first_true(wrong)
    distance = _distance(one, other)
    said = f"{int(wrong.sum())} of {one.numel()} elements of result {number} differ between two equal calls"
    if exempt:
        return Judgement(passed=True, rule=rule, error=distance, notes=(f"{said}: {exempt}",))
    return Judgement(
        passed=False,
        rule=rule,
        reason=said,
        error=distance,
        limit=0.0,
        needed=distance,
        worst_index=index,
        worst_got=text_at(other, index),
        worst_expected=text_at(one, index),
    )


def same_batch(alone: Results, within: Results, *, limit: float, strict: bool = False) -> Judgement:
    """One row computed alone and the same row within a batch.

    Other bits are a note, as kernels choose their blocks by size; `strict` makes them a failure. Further apart than
    `limit`, relative L2 (that of the operator's own judgement), is a failure always: then it is no other order of sums.
    """
    found = same_bits(alone, within, rule="batch")
    if found.passed or strict:
        return found
    worst = max(_distance(one.detach().cpu(), other.detach().cpu()) for one, other in zip(alone, within, strict=True))
    if not worst <= limit:
        reason = f"a row is {worst:.3g} off within a batch, more than the {limit:.3g} that its operator may be off"
        return replace(found, reason=reason, error=worst, limit=limit, needed=worst)
    note = f"a row is {worst:.3g} off within a batch: sums in another order, within the operator's own limit"
    return Judgement(passed=True, rule="batch", error=worst, limit=limit, notes=(note,))


def same_rule(one: Judgement, other: Judgement, what: str) -> Judgement:
    """The same values through another view were judged by the same rule, and neither may fail."""
    if one.passed and not other.passed:
        return replace(other, reason=f"{what}: {other.reason}", notes=(*other.notes, "right for contiguous arguments"))
    return one if not one.passed else other


def draws_differ(first: Results, second: Results, *, bits: float = 1.0) -> Judgement:
    """Two calls of a random operator without a seed between them do not give the same numbers.

    `bits` is how much chance is in one element: 1 for a mask that is kept half the time, 10 and more for floats. So few
    elements that they agree once in 1e10 by themselves are not judged.
    """
    chance = sum(one.numel() for one in first) * bits
    if chance * math.log(2.0) < -math.log(1e-10) or not same_bits(first, second).passed:
        return Judgement(passed=True, rule="distribution")
    reason = "two calls of a random operator gave the same numbers without a seed between them"
    return Judgement(passed=False, rule="distribution", reason=reason)


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    one, other = readable(one).to(torch.float64), readable(other).to(torch.float64)
    finite = torch.isfinite(one) & torch.isfinite(other)
    if bool((torch.isfinite(one) != torch.isfinite(other)).any()):
        return float("inf")
    return relative_l2(torch.where(finite, other, 0.0), torch.where(finite, one, 0.0))

"""Which experts a router chose, and the weights that belong to them.

Shape suffixes: N tokens, E experts, K chosen experts, G groups.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.judging.floats import floats
from day0.analyzers.judging.index_sets import index_sets
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.scales import EPS_FLOAT32
from day0.analyzers.judging.words import first_true, text_at
from day0.reference_ops._spec import Operator, Routing

__all__ = ["routes"]


def routes(
    got: tuple[torch.Tensor, ...],
    golden: tuple[torch.Tensor, ...],
    inputs: CaseInputs,
    contract: Operator,
    routing: Routing,
    number: int,
) -> Judgement:
    """Judge a router's experts by the scores at the cut, and its weights by the experts they stand beside.

    A score may be `ulps` units of float32 off, so that experts as near as that to each other, and groups, may change
    places; a weight belongs to the expert that was chosen, whichever that is. Experts whose scores tie without any
    rounding come by their number, as the contract promises.
    """
    chosen_NK = got[contract.index_output].to(torch.int64)
    scores_NE = routing.scores(*inputs.args, **inputs.kwargs)
    found = _experts(chosen_NK, golden[contract.index_output], scores_NE, routing, inputs, contract.tolerance.ulps)
    if found.passed:
        exact_NE = routing.exact(*inputs.args, **inputs.kwargs)
        found = _ties(chosen_NK, exact_NE, routing.groups(*inputs.args, **inputs.kwargs)[0]) or found
    if number == contract.index_output or not found.passed:
        return found
    weights_NK = routing.weights(chosen_NK, *inputs.args, **inputs.kwargs)
    in_dtype_NK = weights_NK.to(got[number].dtype)
    judged = floats(got[number], weights_NK, in_dtype_NK, contract.tolerance, pointwise=True)
    return judged if judged.passed else replace(judged, reason=f"weights of the chosen experts: {judged.reason}")


def _experts(
    chosen_NK: torch.Tensor,
    golden_NK: torch.Tensor,
    scores_NE: torch.Tensor,
    routing: Routing,
    inputs: CaseInputs,
    ulps: float,
) -> Judgement:
    count = scores_NE.shape[-1]
    outside = (chosen_NK < 0) | (chosen_NK >= count)
    if bool(outside.any()):
        index = first_true(outside)
        reason = f"an expert is out of range: {text_at(chosen_NK, index)} of {count}"
        return Judgement(passed=False, rule="index_set", reason=reason, worst_index=index)
    finite_NE = torch.where(torch.isfinite(scores_NE), scores_NE.abs(), 0.0)
    margin_N = 2.0 * (ulps + 1.0) * EPS_FLOAT32 * finite_NE.amax(-1) if count else scores_NE.new_zeros(len(scores_NE))
    groups, kept = routing.groups(*inputs.args, **inputs.kwargs)
    if groups > 1:
        open_NG = _open_groups(chosen_NK, scores_NE, groups, kept, margin_N)
        if open_NG is None:
            return Judgement(passed=False, rule="index_set", reason="an expert is of a group that was not chosen")
        scores_NE = scores_NE.masked_fill(~open_NG.repeat_interleave(count // groups, dim=-1), float("-inf"))
    order_NE = scores_NE.argsort(dim=-1, descending=True, stable=True)
    # NaN comes first, as in the contract's own order.
    best_NK = order_NE[:, : golden_NK.shape[-1]]
    margin = float(margin_N.max()) if margin_N.numel() else 0.0
    return _by_token(chosen_NK, scores_NE, best_NK, margin_N, margin)


def _ties(chosen_NK: torch.Tensor, exact_NE: torch.Tensor, groups: int) -> Judgement | None:
    """Return what is wrong with the order of experts of one group whose exact scores are equal; None if nothing is."""
    count, topk = exact_NE.shape[-1], chosen_NK.shape[-1]
    if not exact_NE.numel() or not topk:
        return None
    places_NK = torch.arange(topk).expand_as(chosen_NK)
    rank_NE = torch.full(exact_NE.shape, topk).scatter(-1, chosen_NK, places_NK)
    order_NE = exact_NE.argsort(dim=-1, descending=True, stable=True)
    values_NE, ranks_NE, groups_NE = (
        exact_NE.gather(-1, order_NE),
        rank_NE.gather(-1, order_NE),
        order_NE // (count // groups),
    )
    # Equal ones stand side by side by rising number; NaN equals nothing.
    tied_NE = (values_NE[:, 1:] == values_NE[:, :-1]) & (groups_NE[:, 1:] == groups_NE[:, :-1])
    wrong_NE = tied_NE & (ranks_NE[:, 1:] < ranks_NE[:, :-1])
    if not bool(wrong_NE.any()):
        return None
    token, place = first_true(wrong_NE)
    lower, higher = int(order_NE[token, place]), int(order_NE[token, place + 1])
    reason = f"expert {higher} is taken before {lower} of the same score {text_at(values_NE, (token, place))}: ties go to the lower"
    index = (token, int(rank_NE[token, higher]))
    return Judgement(
        passed=False,
        rule="index_set",
        reason=reason,
        worst_index=index,
        worst_got=str(higher),
        worst_expected=str(lower),
    )


def _by_token(
    chosen_NK: torch.Tensor, scores_NE: torch.Tensor, best_NK: torch.Tensor, margin_N: torch.Tensor, margin: float
) -> Judgement:
    """Judge tokens by their own margins: those of one token's scores say nothing of another's."""
    found = index_sets(chosen_NK, scores_NE, best_NK, margin=margin, ordered=True)
    if not found.passed or not margin_N.numel():
        return found
    unit_N1 = margin_N.clamp(min=torch.finfo(torch.float64).tiny)[:, None]
    scaled = index_sets(chosen_NK, scores_NE / unit_N1, best_NK, margin=1.0, ordered=True)
    return found if scaled.passed else replace(scaled, reason=f"in units of the token's own margin: {scaled.reason}")


def _open_groups(
    chosen_NK: torch.Tensor, scores_NE: torch.Tensor, groups: int, kept: int, margin_N: torch.Tensor
) -> torch.Tensor | None:
    """Return the groups [N, G] that are chosen from; None if an expert is of a group that cannot be one.

    Groups whose sums are nearer to the cut than the margin may be in or out: in, if an expert of theirs was chosen.
    """
    tokens, size = scores_NE.shape[0], scores_NE.shape[-1] // groups
    sums_NG = scores_NE.unflatten(-1, (groups, size)).sort(dim=-1, descending=True).values[..., :2].sum(-1)
    sorted_NG = sums_NG.sort(dim=-1, descending=True).values
    cut_N1, next_N1 = sorted_NG[:, kept - 1 : kept], sorted_NG[:, kept : kept + 1]
    next_N1 = next_N1 if next_N1.shape[-1] else torch.full_like(cut_N1, float("-inf"))
    slack_N1 = 2.0 * margin_N[:, None]
    used_NG = torch.zeros(tokens, groups, dtype=torch.bool).scatter(-1, chosen_NK // max(1, size), True)
    unclear_N1 = torch.isnan(sums_NG).any(-1, keepdim=True)
    possible_NG = (sums_NG >= cut_N1 - slack_N1) | unclear_N1
    if bool((used_NG & ~possible_NG).any()) or bool((used_NG.sum(-1) > kept).any()):
        return None
    certain_NG = sums_NG > next_N1 + slack_N1
    open_NG: torch.Tensor = (certain_NG & possible_NG) | used_NG
    return open_NG

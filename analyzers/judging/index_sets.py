"""Chosen indices, by the scores they were chosen for."""

from __future__ import annotations

from dataclasses import replace

import torch

from day0.analyzers.judging.exact import differs
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.words import first_true, index_of, text_at

__all__ = ["index_sets", "values_at"]


def index_sets(
    got: torch.Tensor, scores: torch.Tensor, expected: torch.Tensor, *, margin: float, ordered: bool = False
) -> Judgement:
    """Compare chosen indices [..., K] as sets, by the scores [..., N] they were chosen for.

    -1 means none. Every index must be in range and appear once; a choice that differs passes if its scores,
    sorted, equal those of the expected choice within `margin`: ties may fall either way. With `ordered` the scores
    must come in the expected order too. NaN counts as equal to NaN.
    """
    found = _well_formed(got, scores.shape[-1], expected)
    if found is not None:
        return found
    mine, theirs = _chosen_scores(got, scores), _chosen_scores(expected, scores)
    if not ordered:
        mine, theirs = mine.sort(dim=-1).values, theirs.sort(dim=-1).values
    same = (mine == theirs) | (torch.isnan(mine) & torch.isnan(theirs))
    distance = torch.where(same, 0.0, (mine - theirs).abs().nan_to_num(nan=float("inf")))
    worst = float(distance.max()) if distance.numel() else 0.0
    if not worst <= margin:
        index = index_of(int(distance.argmax()), distance.shape)
        return Judgement(
            passed=False,
            rule="index_set",
            reason=f"a chosen score is {worst:.3g} below the one at the cut, more than {margin:.3g}",
            error=worst,
            limit=margin,
            needed=worst if worst < float("inf") else None,
            worst_index=index,
            worst_got=text_at(mine, index),
            worst_expected=text_at(theirs, index),
        )
    return Judgement(passed=True, rule="index_set", error=worst, limit=margin)


def values_at(values: torch.Tensor, indices: torch.Tensor, source: torch.Tensor) -> Judgement:
    """Values [..., K] that were returned beside indices [..., K] are those of the source [..., N] at the indices."""
    there = torch.gather(source, -1, indices.clamp(min=0).to(torch.int64)).to(values.dtype)
    wrong = differs(values, there)
    if not bool(wrong.any()):
        return Judgement(passed=True, rule="pairs", error=0.0, limit=0.0)
    index = first_true(wrong)
    return Judgement(
        passed=False,
        rule="pairs",
        reason=f"{int(wrong.sum())} values are not those at the indices that were returned beside them",
        worst_index=index,
        worst_got=text_at(values, index),
        worst_expected=text_at(there, index),
    )


def _well_formed(got: torch.Tensor, count: int, expected: torch.Tensor) -> Judgement | None:
    """Return what is wrong with indices by themselves: range, repeats, how many there are."""
    bad = Judgement(passed=False, rule="index_set")
    outside = (got >= count) | (got < -1)
    if bool(outside.any()):
        index = first_true(outside)
        reason = f"an index is out of range: {text_at(got, index)} of {count}"
        return replace(bad, reason=reason, worst_index=index, worst_got=text_at(got, index))
    if not bool(((got >= 0).sum(-1) == (expected >= 0).sum(-1)).all()):
        return replace(bad, reason="another number of valid indices")
    if _repeats(got):
        return replace(bad, reason="an index is chosen twice in one row")
    return None


def _repeats(indices: torch.Tensor) -> bool:
    ordered = indices.sort(dim=-1).values
    return bool(((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any())


def _chosen_scores(indices: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    # Integers beyond 2^53 are compared as such: float64 cannot tell them apart.
    wide = scores.to(torch.float64) if scores.is_floating_point() or scores.dtype == torch.bool else scores
    if not scores.shape[-1]:
        return torch.zeros(indices.shape, dtype=torch.float64)
    chosen = torch.gather(wide, -1, indices.clamp(min=0).to(torch.int64))
    none = float("-inf") if wide.is_floating_point() else torch.iinfo(wide.dtype).min
    return torch.where(indices >= 0, chosen, none)

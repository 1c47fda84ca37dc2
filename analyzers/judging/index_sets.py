"""Chosen indices as sets, by the scores they were chosen for."""

from __future__ import annotations

import torch

from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.words import index_of, text_at

__all__ = ["index_sets"]


def index_sets(
    got: torch.Tensor, scores: torch.Tensor, expected: torch.Tensor, *, margin: float, ordered: bool = False
) -> Judgement:
    """Compare chosen indices [..., K] as sets, by the scores [..., N] they were chosen for.

    -1 means none. Every index must be in range and appear once; a choice that differs passes if its scores,
    sorted, equal those of the expected choice within `margin`: ties may fall either way. With `ordered` the scores
    must come in the expected order too.
    """
    valid_got, valid_expected = got >= 0, expected >= 0
    if not bool((valid_got.sum(-1) == valid_expected.sum(-1)).all()):
        return Judgement(passed=False, rule="index_set", reason="another number of valid indices")
    if bool((got >= scores.shape[-1]).any()) or bool((got < -1).any()):
        return Judgement(passed=False, rule="index_set", reason="an index is out of range")
    if _repeats(got):
        return Judgement(passed=False, rule="index_set", reason="an index is chosen twice in one row")
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
            worst_index=index,
            worst_got=text_at(mine, index),
            worst_expected=text_at(theirs, index),
        )
    return Judgement(passed=True, rule="index_set", error=worst, limit=margin)


def _repeats(indices: torch.Tensor) -> bool:
    ordered = indices.sort(dim=-1).values
    return bool(((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any())


def _chosen_scores(indices: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    chosen = torch.gather(scores.to(torch.float64), -1, indices.clamp(min=0).to(torch.int64))
    return torch.where(indices >= 0, chosen, float("-inf"))

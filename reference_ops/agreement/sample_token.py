"""Sampling: the kept set, the frequencies, and the inverse transform in exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import torch

from day0.reference_ops import sample_token
from day0.reference_ops.agreement._comparison import Comparison

__all__ = ["COMPARISONS"]

CUTS = ((0, 1.0), (5, 1.0), (0, 0.7), (7, 0.5), (3, 0.999), (0, 1e-6))


def against_warpers() -> float:
    """Share of rows whose kept set differs from temperature, top-k and top-p in turn; no two logits are equal."""
    from transformers.generation import logits_process as warp

    logits_BV = torch.randn(64, 50, generator=torch.Generator().manual_seed(41), dtype=torch.float64)
    wrong = 0
    for topk, topp in CUTS:
        scores_BV = warp.TemperatureLogitsWarper(0.8)(None, logits_BV)
        if topk:
            scores_BV = warp.TopKLogitsWarper(topk)(None, scores_BV)
        if topp < 1:
            scores_BV = warp.TopPLogitsWarper(topp)(None, scores_BV)
        order_BV, weight_BV = sample_token.kept_tokens(logits_BV, 0.8, topk, topp)
        kept_BV = torch.zeros_like(logits_BV, dtype=torch.bool).scatter(-1, order_BV, weight_BV > 0)
        wrong += int((kept_BV != torch.isfinite(scores_BV)).any(dim=-1).sum())
    return wrong / (64 * len(CUTS))


def against_multinomial() -> float:
    """Chi-square of 20000 draws each, divided by its 99.9 % quantile for the degrees of freedom."""
    draws, tokens = 20000, 12
    logits_V = torch.randn(tokens, generator=torch.Generator().manual_seed(43), dtype=torch.float64)
    uniform_B = torch.rand(draws, generator=torch.Generator().manual_seed(47), dtype=torch.float64)
    mine = sample_token.reference(logits_V.expand(draws, tokens), uniform_B, 0.9, 8, 0.95)
    order_BV, weight_BV = sample_token.kept_tokens(logits_V[None], 0.9, 8, 0.95)
    probability_V = torch.zeros(tokens, dtype=torch.float64).scatter(0, order_BV[0], weight_BV[0])
    theirs = torch.multinomial(probability_V, draws, True, generator=torch.Generator().manual_seed(53))
    ours_V, theirs_V = (torch.bincount(one, minlength=tokens).double() for one in (mine, theirs))
    either_V = ours_V + theirs_V
    seen_V = either_V > 0
    statistic = float(((ours_V - theirs_V).square()[seen_V] / either_V[seen_V]).sum())
    return statistic / _quantile(int(seen_V.sum()) - 1)


def _quantile(freedom: int) -> float:
    """99.9 % of chi-square, by Wilson and Hilferty's approximation."""
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + 3.0902 * math.sqrt(part)) ** 3)


def against_fractions() -> float:
    """Share of wrong draws where all probabilities are ratios of small whole numbers, many of them equal."""
    # Their logarithms to the base 2 are logits at temperature 1 / ln 2; 997 is prime, so no draw meets an edge.
    weights = [2, 8, 1, 4, 2, 1, 4, 2]
    logits_V = torch.tensor([math.log2(weight) for weight in weights], dtype=torch.float64)
    order = sorted(range(8), key=lambda v: (-weights[v], v))
    wrong = total = 0
    for topk, topp in ((0, 1.0), (3, 1.0), (0, 0.6), (6, 0.7), (4, 0.25), (1, 1.0)):
        kept = order[: topk or 8]
        whole = sum(weights[v] for v in kept)
        sums = [sum(weights[v] for v in kept[:count]) for count in range(len(kept) + 1)]
        kept = kept[: next(count for count in range(1, len(kept) + 1) if sums[count] >= Fraction(topp) * whole)]
        whole = sum(weights[v] for v in kept)
        uniform_B = torch.linspace(0, 1, 998, dtype=torch.float64)[:-1]
        drawn = sample_token.reference(logits_V.expand(997, 8), uniform_B, 1 / math.log(2), topk, topp)
        ranges = list(zip(kept, pairwise(sums[: len(kept) + 1]), strict=True))
        for uniform, token in zip(uniform_B.tolist(), drawn.tolist(), strict=True):
            place = Fraction(uniform) * whole
            wrong += token != next(v for v, (begin, end) in ranges if begin <= place < end)
            total += 1
    return wrong / total


COMPARISONS = (
    Comparison(
        operator=sample_token.NAME,
        variant="kept tokens",
        against="transformers TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper",
        distribution="transformers",
        limit=0.0,
        run=against_warpers,
    ),
    Comparison(
        operator=sample_token.NAME,
        variant="frequencies of 20000 draws, chi-square over its 99.9 % quantile",
        against="torch.multinomial",
        distribution="torch",
        limit=1.0,
        run=against_multinomial,
    ),
    Comparison(
        operator=sample_token.NAME,
        variant="inverse transform with ties",
        against="Python's fractions",
        distribution="day0",
        limit=0.0,
        run=against_fractions,
    ),
)

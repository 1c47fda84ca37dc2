"""Index logits against the scores that other people's indexers give to their top-k.

Theirs come from random weights, all in float64: what their modules project is turned by our rope and transform, so
that slice, pairing, Hadamard and key norm of each model are compared too.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from day0.reference_ops import hadamard, lightning_indexer, pool_index_keys, rope
from day0.reference_ops.agreement import _indexers
from day0.reference_ops.agreement._comparison import Comparison, worst
from day0.reference_ops.agreement.rope import in_place

__all__ = ["COMPARISONS", "pool_scores", "turned"]


def turned(seen: _indexers.Seen, pairing: str, start: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the arguments q, k and w of the operator from what a model projected."""
    q_BSHD, k_BSD, w_BSH = _indexers.projected(seen)
    angles = (seen.cos_ASP, seen.sin_ASP)
    q_BSHD = rope.reference(q_BSHD, *angles, pairing, start)
    k_BSD = rope.reference(k_BSD[:, :, None], *angles, pairing, start)[:, :, 0]
    old_k_BTD = seen.old_k_BTD
    if pairing == "interleaved":
        # What they keep is in half order: the two caches cannot be exchanged.
        old_k_BTD = torch.cat((in_place(old_k_BTD[..., : _indexers.ROPE]), old_k_BTD[..., _indexers.ROPE :]), dim=-1)
    return q_BSHD, torch.cat((old_k_BTD, k_BSD), dim=1), w_BSH


def against_transformers(model: str, prefix: str, pairing: str, from_end: bool, before: int) -> float:
    """Scores of tokens, from the first position on or behind a cache."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    seen = _indexers.per_token(module, prefix, before)
    width = seen.made["k_norm"].shape[-1]
    q_BSHD, k_BTD, w_BSH = turned(seen, pairing, width - _indexers.ROPE if from_end else 0)
    return worst((lightning_indexer.reference(q_BSHD, k_BTD, w_BSH, before), seen.scores[0]))


def against_nemo() -> float:
    """Scores of tokens with Hadamard on both sides."""
    seen = _indexers.nemo()
    q_BSHD, k_BTD, w_BSH = turned(seen, "half", 0)
    q_BSHD, k_BTD = hadamard.reference(q_BSHD), hadamard.reference(k_BTD)
    return worst((lightning_indexer.reference(q_BSHD, k_BTD, w_BSH, 0), seen.scores[0]))


def against_pools() -> float:
    """Scores of pools, where theirs are open: they give the lowest number instead of -inf."""
    padding = (0, 3)
    indexer, seen = _indexers.glm5_next(padding, 9, 18)
    mine_BST = pool_scores(indexer, seen, padding)
    theirs_BST = seen.scores[0]
    open_BST = theirs_BST > torch.finfo(torch.float64).min
    mine_BST = mine_BST[..., : theirs_BST.shape[-1]]
    return worst((torch.where(open_BST, mine_BST, 0.0), torch.where(open_BST, theirs_BST, 0.0)))


def pool_scores(indexer: Any, seen: _indexers.Seen, padding: tuple[int, int]) -> torch.Tensor:
    """Return scores of all pools, those too that no query sees: behind all of them no key is hidden."""
    q_BSHD, k_BSD, w_BSH = _indexers.projected(seen)
    k_BTD = torch.cat((seen.old_k_BTD, k_BSD), dim=1)
    table_PD = indexer.index_kpool_compress_ape.detach()
    pool_BND = pool_index_keys.reference(k_BTD, seen.made["gate"], table_PD, torch.tensor(padding), _indexers.POOL)
    return lightning_indexer.reference(q_BSHD, pool_BND, w_BSH, pool_BND.shape[1])


def against_ml_dtypes() -> float:
    """The quantised form, with FP8 numbers and scales from NumPy: an empty row, a small one, one that just fits."""
    import ml_dtypes
    import numpy

    generator = torch.Generator().manual_seed(5)
    q_BSHD, k_BTD, w_BSH = (
        torch.randn(shape, generator=generator) for shape in ((2, 3, 17, 40), (2, 9, 40), (2, 3, 17))
    )
    q_BSHD[0, 0, 0], k_BTD[0, 1], k_BTD[0, 2] = 0.0, 1e-9 * k_BTD[0, 1], 448.0
    sides = []
    for x in (q_BSHD.double().numpy(), k_BTD.double().numpy()):
        amax = numpy.maximum(numpy.abs(x).max(axis=-1, keepdims=True), lightning_indexer.AMAX_FLOOR)
        scale = 2.0 ** numpy.ceil(numpy.log2(amax / 448.0))
        sides.append((x / scale).astype(ml_dtypes.float8_e4m3fn).astype("float64") * scale)
    dot_BSHT = numpy.maximum(numpy.einsum("bshd,btd->bsht", *sides), 0.0)
    theirs_BST = torch.from_numpy(numpy.einsum("bsh,bsht->bst", w_BSH.double().numpy(), dot_BSHT) / (17 * 40) ** 0.5)
    theirs_BST = theirs_BST.masked_fill(torch.ones(3, 9, dtype=torch.bool).triu(5), float("-inf"))
    return worst((lightning_indexer.quantised(q_BSHD.double(), k_BTD.double(), w_BSH.double(), 4), theirs_BST))


def _transformers(model: str, prefix: str, pairing: str, from_end: bool, before: int) -> Comparison:
    place = "last" if from_end else "first"
    return Comparison(
        operator=lightning_indexer.NAME,
        variant=f"{place} values, {pairing} rope{', behind a cache' if before else ''}",
        against=f"{model} {prefix}Indexer",
        distribution="transformers",
        limit=3e-15,
        run=lambda: against_transformers(model, prefix, pairing, from_end, before),
    )


COMPARISONS = (
    _transformers("deepseek_v32", "DeepseekV32", "half", False, 0),
    _transformers("deepseek_v32", "DeepseekV32", "half", False, 6),
    _transformers("glm_moe_dsa", "GlmMoeDsa", "interleaved", False, 6),
    _transformers("hy_v4", "HYV4", "half", True, 6),
    Comparison(
        operator=lightning_indexer.NAME,
        variant="pools, no rope",
        against="glm5_next Glm5NextTextIndexer",
        distribution="transformers",
        limit=3e-15,
        run=against_pools,
    ),
    Comparison(
        operator=lightning_indexer.NAME,
        variant="first values, half rope, Hadamard on both sides",
        against="deepseek_v32 DeepseekV32Indexer",
        distribution="nemo-automodel",
        limit=3e-15,
        run=against_nemo,
    ),
    Comparison(
        operator=lightning_indexer.NAME,
        variant="quantised: FP8 with power-of-two scales",
        against="float8_e4m3fn",
        distribution="ml_dtypes",
        limit=5e-15,
        run=against_ml_dtypes,
    ),
)

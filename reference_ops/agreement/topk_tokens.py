"""Token selection against NumPy's stable sort and the selections of transformers' indexers."""

from __future__ import annotations

import importlib

import torch

from day0.reference_ops import lightning_indexer, topk_from_masked, topk_tokens
from day0.reference_ops.agreement import _indexers
from day0.reference_ops.agreement._comparison import Comparison, worst
from day0.reference_ops.agreement.lightning_indexer import turned

__all__ = ["COMPARISONS"]


def against_numpy() -> float:
    """Scores with many ties: a stable sort of the negated scores keeps equal ones by rising index."""
    import numpy

    logits_BST = torch.randint(-3, 4, (3, 5, 70), generator=torch.Generator().manual_seed(1)).float()
    order = numpy.argsort(-logits_BST.numpy(), axis=-1, kind="stable")[..., :16]
    indices_BSK, lengths_BS = topk_tokens.reference(logits_BST, 16)
    return worst((indices_BSK, torch.from_numpy(order)), (lengths_BS, torch.full((3, 5), 16)))


def against_numpy_lengths() -> float:
    """The same of each row's beginning alone, which may be shorter than topk."""
    import numpy

    logits_BST = torch.randint(-3, 4, (3, 5, 70), generator=torch.Generator().manual_seed(1)).float()
    lengths_BS = torch.arange(15, dtype=torch.int32).reshape(3, 5) * 5
    indices_BSK, counts_BS = topk_tokens.reference(logits_BST, 16, lengths_BS)
    pairs = []
    for b in range(3):
        for s in range(5):
            row = logits_BST[b, s, : int(lengths_BS[b, s])].numpy()
            order = torch.from_numpy(numpy.argsort(-row, kind="stable")[:16])
            expected = torch.full((16,), -1)
            expected[: order.numel()] = order
            pairs += [(indices_BSK[b, s], expected), (counts_BS[b, s], torch.tensor(order.numel()))]
    return worst(*pairs)


def against_transformers(model: str, prefix: str, pairing: str) -> float:
    """The tokens that an indexer chooses, from the scores we give: short rows in the beginning, full ones later."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    seen = _indexers.per_token(module, prefix, 2)
    q_BSHD, k_BTD, w_BSH = turned(seen, pairing, 0)
    logits_BST = lightning_indexer.reference(q_BSHD, k_BTD, w_BSH, 2)
    mine_BSK, count_BS = topk_tokens.reference(logits_BST, _indexers.TOPK)
    theirs_BSK, visible_BS = topk_from_masked.reference(seen.chosen, 2, k_BTD.shape[1])
    return max(_indexers.differing(mine_BSK, theirs_BSK), worst((count_BS, visible_BS)))


COMPARISONS = (
    Comparison(
        operator=topk_tokens.NAME,
        variant="ties",
        against="numpy.argsort(kind='stable')",
        distribution="numpy",
        limit=0.0,
        run=against_numpy,
    ),
    Comparison(
        operator=topk_tokens.NAME,
        variant="ties and lengths",
        against="numpy.argsort(kind='stable')",
        distribution="numpy",
        limit=0.0,
        run=against_numpy_lengths,
    ),
    Comparison(
        operator=topk_tokens.NAME,
        variant="as sets, scores of day0::lightning_indexer",
        against="deepseek_v32 DeepseekV32Indexer",
        distribution="transformers",
        limit=0.0,
        run=lambda: against_transformers("deepseek_v32", "DeepseekV32", "half"),
    ),
    Comparison(
        operator=topk_tokens.NAME,
        variant="as sets, scores of day0::lightning_indexer",
        against="glm_moe_dsa GlmMoeDsaIndexer",
        distribution="transformers",
        limit=0.0,
        run=lambda: against_transformers("glm_moe_dsa", "GlmMoeDsa", "interleaved"),
    ),
)

"""Token selection against NumPy's stable sort."""

from __future__ import annotations

import torch

from day0.reference_ops import topk_tokens
from day0.reference_ops.agreement._comparison import Comparison, worst

__all__ = ["COMPARISONS"]


def against_numpy() -> float:
    """Scores with many ties: a stable sort of the negated scores keeps equal ones by rising index."""
    import numpy

    logits_BST = torch.randint(-3, 4, (3, 5, 70), generator=torch.Generator().manual_seed(1)).float()
    order = numpy.argsort(-logits_BST.numpy(), axis=-1, kind="stable")[..., :16]
    return worst((topk_tokens.reference(logits_BST, 16), torch.from_numpy(order)))


COMPARISONS = (
    Comparison(
        operator=topk_tokens.NAME,
        variant="ties",
        against="numpy.argsort(kind='stable')",
        distribution="numpy",
        limit=0.0,
        run=against_numpy,
    ),
)

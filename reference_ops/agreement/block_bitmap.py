"""Blocks that are read against sets in Python."""

from __future__ import annotations

import torch

from day0.reference_ops import block_bitmap
from day0.reference_ops.agreement._comparison import Comparison, worst

__all__ = ["COMPARISONS"]


def against_sets() -> float:
    """The blocks of all rows that exist, for sizes that divide nothing."""
    pairs = []
    for block_size, blocks in ((1, 5), (5, 3), (7, 2), (64, 1)):
        generator = torch.Generator().manual_seed(blocks)
        indices_BSK = torch.randint(-3, block_size * blocks + 3, (9, 2, 3), generator=generator).to(torch.int32)
        read = [{i // block_size for i in row} for row in indices_BSK.flatten(1).tolist()]
        expected_BN = torch.tensor([[n in one for n in range(blocks)] for one in read])
        pairs.append((block_bitmap.reference(indices_BSK, block_size, blocks), expected_BN))
    return worst(*pairs)


COMPARISONS = (
    Comparison(
        operator=block_bitmap.NAME,
        variant="",
        against="sets in Python",
        distribution="day0",
        limit=0.0,
        run=against_sets,
    ),
)

"""What the tiers have in common.

Shape suffixes: G groups of 32 values, B = 16 packed bytes of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from day0.converters.tables import Table

__all__ = ["GROUP_BYTES", "BlockRows", "Decode", "Tier"]

GROUP_BYTES = 16
"""Packed bytes that share a row of the table."""

Decode = Callable[[torch.Tensor, torch.Tensor, Table, torch.Tensor], None]
"""`decode(codes_GB, rows_G, table, out_GB)`: look every packed byte up in the row of its group.

codes uint8 [G, 16]; rows uint8 [G]; out [G, 16] in the dtype of `table.pairs`, contiguous, written in place.
"""

BlockRows = Callable[[torch.Tensor, int, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""`block_rows(bytes_RG, height, scales_MN, rows_RG, unsettled)`: scales of FP8 blocks of `height` rows and 128 columns,
and the table's row for every group, from the scale bytes alone; see `_triton_rows.py`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tier:
    """One way to do it."""

    name: str
    summary: str
    missing: Callable[[str], str]
    """Why it cannot be used here for tensors of a device type, such as cpu or cuda; empty where it can."""
    decode: Decode
    block_rows: BlockRows | None = None
    """How it finds the scales of blocks; None where eager torch does."""

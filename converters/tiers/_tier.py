"""What the tiers have in common.

Shape suffixes: G groups of 32 values, B = 16 packed bytes of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from day0.converters.tables import Table

__all__ = ["GROUP_BYTES", "Decode", "Scaled", "Tier"]

GROUP_BYTES = 16
"""Packed bytes that share a row of the table."""

Decode = Callable[[torch.Tensor, torch.Tensor, Table, torch.Tensor], None]
"""`decode(codes_GB, rows_G, table, out_GB)`: look every packed byte up in the row of its group.

codes uint8 [G, 16]; rows uint8 [G]; out [G, 16] in the dtype of `table.pairs`, contiguous, written in place.
"""

Scaled = Callable[[torch.Tensor, torch.Tensor, int, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""`scaled(codes_RP, bytes_RG, height, scales, out_RC, unsettled)`: e4m3 with the scales of a layout, all at once, from the
scale bytes alone; see `_triton_scaled.py`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tier:
    """One way to do it."""

    name: str
    summary: str
    missing: Callable[[str], str]
    """Why it cannot be used here for tensors of a device type, such as cpu or cuda; empty where it can."""
    decode: Decode
    scaled: Scaled | None = None
    """How it converts with scales at once; None where eager torch finds the scales of blocks first."""
    forks: bool = True
    """Whether a copy of a process can use it: what compiles, or opens a device, wants the process itself."""

"""Table look-ups in eager torch: on any device, without a compiler.

Shape suffixes: G groups of 32 values, B = 16 packed bytes of a group, H = 8 halves-words of two packed bytes.
"""

from __future__ import annotations

import functools

import torch

from day0.converters.tables import Table
from day0.converters.tiers._tier import Tier

__all__ = ["TIER", "decode"]

CHUNK = 1 << 14
"""Groups at a time: what lies in between (indices of four bytes) stays in the second-level cache."""
QUADS_UP_TO = 64
"""Rows of a table for which one look-up may serve two packed bytes: more would not fit a cache."""


def decode(codes_GB: torch.Tensor, rows_G: torch.Tensor, table: Table, out_GB: torch.Tensor) -> None:
    """Look up; see `Decode`."""
    device = codes_GB.device
    wide = table.pairs.dtype == torch.int16 and table.pairs.shape[0] <= QUADS_UP_TO
    look = (_quads if wide else _pairs)(table, device)
    words = codes_GB.view(torch.uint16) if wide else codes_GB
    out = out_GB.view(torch.int32) if wide else out_GB
    shift = 16 if wide else 8
    for begin in range(0, codes_GB.shape[0], CHUNK):
        end = min(begin + CHUNK, codes_GB.shape[0])
        index = words[begin:end].to(torch.int32)
        index += (rows_G[begin:end].to(torch.int32) << shift).unsqueeze(1)
        torch.index_select(look, 0, index.view(-1), out=out[begin:end].view(-1))


@functools.lru_cache(maxsize=32)
def _on(pairs: int, table: Table, device: torch.device) -> torch.Tensor:
    flat = table.pairs.reshape(-1)
    if pairs == 1:
        return flat.to(device)
    # Low byte of the word first: its values are the low half of the result.
    low, high = torch.arange(65536) & 255, torch.arange(65536) >> 8
    both = torch.stack((table.pairs[:, low], table.pairs[:, high]), dim=-1).contiguous()
    return both.view(torch.int32).reshape(-1).to(device)


def _pairs(table: Table, device: torch.device) -> torch.Tensor:
    return _on(1, table, device)


def _quads(table: Table, device: torch.device) -> torch.Tensor:
    return _on(2, table, device)


TIER = Tier(name="eager", summary="tables in eager torch, on any device", missing=lambda: "", decode=decode)

"""Table look-ups in eager torch: on any device, without a compiler.

Shape suffixes: G groups of 32 values, B = 16 packed bytes of a group.
"""

from __future__ import annotations

import functools

import torch

from day0.converters.tables import Table
from day0.converters.tiers._tier import Tier

__all__ = ["TIER", "decode", "on_device"]

CHUNK = 1 << 14
"""Groups at a time: the indices in between, of four bytes each, stay in the second-level cache."""
DEVICE_CHUNK = 1 << 20
"""On a device, every piece is launched anew, and launching is what takes the time: a matrix is one piece, and the
indices in between take 64 MiB at most."""


def decode(codes_GB: torch.Tensor, rows_G: torch.Tensor, table: Table, out_GB: torch.Tensor) -> None:
    """Look up; see `Decode`."""
    # One byte at a time: a table for two of them is 256 times as large, and slower as soon as caches are shared.
    look = on_device(table, codes_GB.device)
    chunk = CHUNK if codes_GB.device.type == "cpu" else DEVICE_CHUNK
    for begin in range(0, codes_GB.shape[0], chunk):
        end = min(begin + chunk, codes_GB.shape[0])
        index = codes_GB[begin:end].to(torch.int32)
        index += (rows_G[begin:end].to(torch.int32) << 8).unsqueeze(1)
        torch.index_select(look, 0, index.view(-1), out=out_GB[begin:end].view(-1))


@functools.lru_cache(maxsize=32)
def on_device(table: Table, device: torch.device) -> torch.Tensor:
    """Return the words of a table in one row, copied to a device once."""
    return table.pairs.reshape(-1).to(device)


TIER = Tier(name="eager", summary="tables in eager torch, on any device", missing=lambda _: "", decode=decode)

"""Tiles of four-bit codes through a table, and what the table says of the result.

Shape suffixes: R rows, P packed bytes, G groups, C = 2 P columns.
"""

from __future__ import annotations

import functools

import torch

from day0.converters.tables import Table
from day0.converters.targets._target import Job
from day0.converters.verdict import Verdict
from day0.converters.weight import GROUP

__all__ = ["count_codes", "look_up"]

BYTES = GROUP // 2


def look_up(job: Job, codes_RP: torch.Tensor, rows_RG: torch.Tensor, table: Table) -> torch.Tensor:
    """Return [R, P] words of two values each, in a buffer that the next tile uses again."""
    out = job.buffers.take("out", tuple(codes_RP.shape), table.pairs.dtype)
    job.decode(codes_RP.reshape(-1, BYTES), rows_RG.reshape(-1), table, out.view(-1, BYTES))
    return out


def count_codes(codes_RP: torch.Tensor, rows_RG: torch.Tensor, where_RG: torch.Tensor, table: Table) -> Verdict:
    """Count what a table changes or makes subnormal in the groups of a mask."""
    groups = codes_RP.unflatten(-1, (-1, BYTES))[where_RG].to(torch.int32)
    index = groups + (rows_RG[where_RG].to(torch.int32) << 8).unsqueeze(-1)
    counts = torch.bincount(index.view(-1), minlength=table.pairs.numel()).view(-1, 256)
    changed, subnormal = _weights(table)
    return Verdict(changed=int((counts * changed).sum()), subnormal=int((counts * subnormal).sum()))


@functools.cache
def _weights(table: Table) -> tuple[torch.Tensor, torch.Tensor]:
    codes = torch.arange(256)
    wrong, low = (~table.exact).to(torch.int64), table.subnormal.to(torch.int64)
    return wrong[:, codes & 15] + wrong[:, codes >> 4], low[:, codes & 15] + low[:, codes >> 4]

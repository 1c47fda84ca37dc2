"""The rows of a paged latent cache against a reader that knows no tensors."""

from __future__ import annotations

import torch

from day0.reference_ops import paged_kv_gather
from day0.reference_ops.agreement._comparison import worst
from day0.reference_ops.agreement._latent_rows import in_every_layout, packed_page, read_page

__all__ = ["COMPARISONS"]


def against_bytes(latent: int, rope: int, page: int, layout: str) -> float:
    """Two requests over three pages in no order, one of them with a page missing, each shorter than its table."""
    generator = torch.Generator().manual_seed(9)
    kind = layout.partition(":")[0]
    rows_PGC = torch.randn(3, page, latent + rope, generator=generator).to(torch.bfloat16)
    stored = [packed_page(one.tolist(), latent, kind) for one in rows_PGC]
    pages = torch.tensor([list(one) for one in stored], dtype=torch.uint8)
    pages = pages.unflatten(1, (page, -1)) if kind == "fp8_656" else pages
    table, lengths = [[2, 0], [-1, 1]], [2 * page - 1, page + 1]
    expected = torch.zeros(2, 2 * page, latent + rope, dtype=torch.float64)
    for request, blocks in enumerate(table):
        for place, block in enumerate(blocks):
            if block >= 0:
                read = read_page(stored[block], page, latent, latent + rope, kind)
                expected[request, place * page : (place + 1) * page] = torch.tensor(read, dtype=torch.float64)
        expected[request, lengths[request] :] = 0.0
    got = paged_kv_gather.reference(
        pages,
        torch.tensor(table, dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        latent,
        latent + rope,
        2 * page,
        torch.float64,
        layout,
    )
    return worst((got, expected))


COMPARISONS = in_every_layout(paged_kv_gather.NAME, against_bytes)

"""The bytes of a paged latent cache against a packer that knows no tensors."""

from __future__ import annotations

import torch

from day0.reference_ops import paged_kv_write
from day0.reference_ops.agreement._comparison import worst
from day0.reference_ops.agreement._latent_rows import in_every_layout, packed_page

__all__ = ["COMPARISONS"]


def against_bytes(latent: int, rope: int, page: int, layout: str) -> float:
    """Rows of all magnitudes, zeros among them, in two pages, the second before the first."""
    generator = torch.Generator().manual_seed(8)
    sizes = 10.0 ** torch.randint(-6, 5, (2 * page, 1), generator=generator)
    rows_NC = (torch.randn(2 * page, latent + rope, generator=generator) * sizes).to(torch.bfloat16)
    rows_NC[0] = 0.0
    kind = layout.partition(":")[0]
    theirs = [packed_page(rows_NC[first : first + page].tolist(), latent, kind) for first in (page, 0)]
    pages = torch.zeros(2, len(theirs[0]), dtype=torch.uint8)
    pages = pages.unflatten(1, (page, -1)) if kind == "fp8_656" else pages
    slots_N = torch.arange(2 * page).roll(page)
    paged_kv_write.reference(pages, rows_NC, slots_N, latent, layout)
    expected = torch.tensor([list(one) for one in theirs], dtype=torch.uint8)
    return worst((pages.flatten(1), expected))


COMPARISONS = in_every_layout(paged_kv_write.NAME, against_bytes)

"""Decoding from a paged cache against torch, gpt_oss, and prefill over the same rows."""

from __future__ import annotations

import torch

from day0.reference_ops import paged_kv_gather, paged_kv_write, sparse_mla_decode, sparse_mla_prefill
from day0.reference_ops.agreement._comparison import Comparison, worst
from day0.reference_ops.agreement._latent_rows import attention_with_sinks, random_indices, scaled_attention

__all__ = ["COMPARISONS"]

LATENT, WIDTH, PAGE, PAGES = 48, 64, 4, 12
SCALE = 0.2


def against_torch() -> float:
    """Plain pages are rows one after the other for whoever does not know of pages."""
    q_BSHC, pages_PGC, indices_BSK = inputs()
    out_BSHL = sparse_mla_decode.reference(q_BSHC, pages_PGC, indices_BSK, LATENT, SCALE)[0]
    kv_BTC = pages_PGC.flatten(0, 1).expand(2, -1, -1)
    return worst((out_BSHL, scaled_attention(q_BSHC, kv_BTC, indices_BSK, LATENT, SCALE)))


def against_gpt_oss() -> float:
    """A sink for each head, some of them larger than every score."""
    q_BSHC, pages_PGC, indices_BSK = inputs()
    sink_H = torch.tensor([-3.0, 0.0, 1.5, 4.0, 20.0, -50.0], dtype=torch.float64)
    out_BSHL = sparse_mla_decode.reference(q_BSHC, pages_PGC, indices_BSK, LATENT, SCALE, "plain", None, sink_H)[0]
    kv_BTC = pages_PGC.flatten(0, 1).expand(2, -1, -1)
    return worst((out_BSHL, attention_with_sinks(q_BSHC, kv_BTC, indices_BSK, LATENT, SCALE, sink_H)))


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two requests with three queries each, in float64, over plain pages."""
    generator = torch.Generator().manual_seed(6)
    q_BSHC = torch.randn(2, 3, 6, WIDTH, generator=generator, dtype=torch.float64)
    pages_PGC = torch.randn(PAGES, PAGE, WIDTH, generator=generator, dtype=torch.float64)
    return q_BSHC, pages_PGC, random_indices(2, 3, 9, PAGES * PAGE, generator)


def against_prefill(layout: str) -> float:
    """Requests of different lengths, written to pages in no order; lengths, sinks, and a page that is not marked."""
    generator = torch.Generator().manual_seed(7)
    q_BSHC = torch.randn(2, 3, 6, WIDTH, generator=generator, dtype=torch.float64)
    shape = {"plain": (PAGE, WIDTH), "fp8_656": (LATENT + 4 + 32,), "fp8_584:4": (576,)}[layout]
    shape = (PAGE, *shape) if layout == "fp8_656" else shape
    dtype = torch.float64 if layout == "plain" else torch.uint8
    pages = torch.zeros(PAGES, *shape, dtype=dtype)
    table_BM = torch.randperm(PAGES, generator=generator).reshape(2, PAGES // 2).to(torch.int32)
    lengths_B = torch.tensor([23, 10], dtype=torch.int32)
    indices_BSK = torch.stack([random_indices(1, 3, 9, int(length), generator)[0] for length in lengths_B])
    for request in range(2):
        rows_TC = torch.randn(int(lengths_B[request]), WIDTH, generator=generator, dtype=torch.float64)
        logical_T = torch.arange(len(rows_TC))
        slots_T = table_BM[request, logical_T // PAGE] * PAGE + logical_T % PAGE
        paged_kv_write.reference(pages, rows_TC, slots_T, LATENT, layout)
    flat_BSK = table_BM.gather(1, (indices_BSK // PAGE).flatten(1).long()).reshape(2, 3, 9) * PAGE + indices_BSK % PAGE
    count_B = torch.tensor([9, 6], dtype=torch.int32)
    sink_H = torch.tensor([-3.0, 0.0, 1.5, 4.0, 20.0, -50.0], dtype=torch.float64)
    bitmap_BP = torch.ones(2, PAGES, dtype=torch.bool)
    bitmap_BP[0, table_BM[0, 1]] = False
    decoded = sparse_mla_decode.reference(
        q_BSHC, pages, flat_BSK.to(torch.int32), LATENT, SCALE, layout, count_B, sink_H, bitmap_BP
    )
    kv_BTC = paged_kv_gather.reference(pages, table_BM, lengths_B, LATENT, WIDTH, 23, torch.float64, layout)
    shut = torch.tensor([True, False])[:, None, None] & (indices_BSK // PAGE == 1)
    seen_BSK = torch.where(shut, -1, indices_BSK)
    count_BS = count_B[:, None].expand(2, 3)
    prefilled = sparse_mla_prefill.reference(q_BSHC, kv_BTC, seen_BSK, LATENT, SCALE, count_BS, sink_H)
    return worst((decoded[0], prefilled[0]), (decoded[1], prefilled[2].transpose(1, 2)))


COMPARISONS = (
    Comparison(
        operator=sparse_mla_decode.NAME,
        variant="plain",
        against="torch.nn.functional.scaled_dot_product_attention on gathered rows",
        distribution="torch",
        limit=1e-14,
        run=against_torch,
    ),
    Comparison(
        operator=sparse_mla_decode.NAME,
        variant="sink",
        against="transformers.models.gpt_oss eager_attention_forward on gathered rows",
        distribution="transformers",
        limit=1e-14,
        run=against_gpt_oss,
    ),
    *(
        Comparison(
            operator=sparse_mla_decode.NAME,
            variant=layout,
            against="day0::sparse_mla_prefill over the same rows, through paged_kv_write",
            distribution="day0",
            limit=1e-14,
            run=lambda layout=layout: against_prefill(layout),  # type: ignore[misc]  # a default binds the layout
        )
        for layout in ("plain", "fp8_656", "fp8_584:4")
    ),
)

"""Read the rows of requests out of a paged latent cache.

Shape suffixes: B batch, T rows of a request, M pages of a request, P pages, G rows of a page, X bytes of a piece,
C = L + R row width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops import _cache_layouts as layouts
from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["OP", "fake", "reference", "validate"]

NAME = "day0::paged_kv_gather"


def validate(
    pages: torch.Tensor,
    block_table_BM: torch.Tensor,
    lengths_B: torch.Tensor,
    latent: int,
    width: int,
    rows: int,
    dtype: torch.dtype,
    layout: str = "plain",
) -> tuple[layouts.Layout, int]:
    """Refuse arguments that break the contract; return the layout and how many rows a page has."""
    check = Arguments(NAME)
    check.shape("block_table", block_table_BM, "BM")
    check.shape("lengths", lengths_B, "B")
    check.dtype("block_table", block_table_BM, torch.int32)
    check.dtype("lengths", lengths_B, torch.int32)
    check.true("rows", rows >= 0, "0 or more", rows)
    check.true("dtype", dtype.is_floating_point, "a floating dtype", dtype)
    found = layouts.read_layout(check, layout, latent, width)
    return found, layouts.check_pages(check, pages, found)


def reference(
    pages: torch.Tensor,
    block_table_BM: torch.Tensor,
    lengths_B: torch.Tensor,
    latent: int,
    width: int,
    rows: int,
    dtype: torch.dtype,
    layout: str = "plain",
) -> torch.Tensor:
    """Return the first `rows` rows of each request, [B, rows, C] in `dtype`.

    Row t of request b stands in page block_table[b, t // G]. Rows from lengths[b] on, behind the table, and on a page
    below 0 or beyond the cache are 0, whatever stands in the memory.
    """
    found, page = validate(pages, block_table_BM, lengths_B, latent, width, rows, dtype, layout)
    batch, blocks = block_table_BM.shape
    if not blocks or not pages.shape[0]:
        return pages.new_zeros((batch, rows, width), dtype=dtype)
    row_T = torch.arange(rows, device=pages.device)
    place_T = row_T // page
    offset_T = row_T - place_T * page
    block_BT = block_table_BM[:, place_T.clamp(max=blocks - 1)].to(torch.int64)
    there_BT = (row_T < lengths_B[:, None]) & (place_T < blocks) & (block_BT >= 0) & (block_BT < pages.shape[0])
    block_BT = torch.where(there_BT, block_BT, 0)
    pieces = tuple(view_PGX[block_BT, offset_T] for view_PGX in layouts.views(pages, found, page))
    rows_BTC = layouts.unpack(pieces, found, dtype)
    return torch.where(there_BT[:, :, None], rows_BTC, 0.0)


def fake(
    pages: torch.Tensor,
    block_table_BM: torch.Tensor,
    lengths_B: torch.Tensor,
    latent: int,
    width: int,
    rows: int,
    dtype: torch.dtype,
    layout: str = "plain",
) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(pages, block_table_BM, lengths_B, latent, width, rows, dtype, layout)
    return pages.new_empty((block_table_BM.shape[0], rows, width), dtype=dtype)


def moved_bytes(
    pages: torch.Tensor,
    block_table_BM: torch.Tensor,
    lengths_B: torch.Tensor,
    latent: int,
    width: int,
    rows: int,
    dtype: torch.dtype,
    layout: str = "plain",
) -> int:
    """The rows as they are stored and as they are returned, the tables once: never the whole cache."""
    found, _ = validate(pages, block_table_BM, lengths_B, latent, width, rows, dtype, layout)
    stored = found.width * pages.element_size() if found.kind == "plain" else found.data_bytes + found.scale_bytes
    tables = sum(one.numel() * one.element_size() for one in (block_table_BM, lengths_B))
    return int(tables + block_table_BM.shape[0] * rows * (stored + width * dtype.itemsize))


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Rows in every place of the pages, pages in no order with -1 among them, and lengths of all sizes."""
    pages, block_table_BM, lengths_B, latent, width, rows, dtype = args[:7]
    layout = kwargs.get("layout", args[7] if len(args) > 7 else "plain")
    found, page = validate(pages, block_table_BM, lengths_B, latent, width, rows, dtype, layout)
    layouts.fill_pages(pages, found, page, generator)
    places = max(pages.shape[0], block_table_BM.numel())
    order = torch.randperm(places, generator=generator)[: block_table_BM.numel()].reshape(block_table_BM.shape)
    block_table_BM.copy_(torch.where(order < pages.shape[0], order, -1))
    lengths_B.copy_(torch.randint(0, rows + 1, lengths_B.shape, generator=generator))
    lengths_B[:1] = rows


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Plain pages; odd sizes with missing pages and NaN behind the lengths; no pages, no rows; rows of real models."""
    for kind, (batch, blocks, pages, page, latent, rope, rows), layout, dtype in (
        ("small", (2, 2, 4, 4, 8, 4, 7), "plain", torch.float32),
        ("odd", (3, 2, 5, 3, 5, 3, 8), "fp8_656", torch.bfloat16),
        ("odd", (2, 2, 3, 3, 2, 1, 5), "plain", torch.bfloat16),
        ("corner", (2, 0, 1, 2, 1, 0, 3), "plain", torch.float32),
        ("corner", (2, 2, 4, 1, 1, 0, 2), "fp8_656", torch.float16),
        ("corner", (1, 1, 1, 2, 3, 1, 0), "fp8_584:2", torch.float32),
        ("traced", (2, 2, 4, 64, 512, 64, 80), "fp8_656", torch.bfloat16),
        ("traced", (2, 2, 4, 64, 448, 64, 80), "fp8_584:64", torch.bfloat16),
    ):
        found = layouts.read_layout(Arguments(NAME), layout, latent, latent + rope)
        stored = dtype if layout == "plain" else torch.uint8
        cache = torch.zeros(pages, *layouts.page_shape(found, page), dtype=stored)
        if layout == "plain":
            cache.copy_(torch.randn(cache.shape, generator=generator))
        table_BM, lengths_B = torch.zeros(batch, blocks, dtype=torch.int32), torch.zeros(batch, dtype=torch.int32)
        args = (cache, table_BM, lengths_B, latent, latent + rope, rows, dtype, layout)
        fill(args, {}, generator)
        if kind == "odd" and layout == "plain":
            lengths_B.copy_(torch.tensor([2, 1]))
            cache[:, 2] = float("nan")
        yield Sample(kind=kind, args=args, kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="reads the rows of requests out of a paged latent cache, dequantised",
    schema="(Tensor pages, Tensor block_table, Tensor lengths, int latent, int width, int rows, ScalarType dtype, "
    'str layout="plain") -> Tensor',
    mathematics="row t of request b is pages[block_table[b, t // G], t % G], code times scale for the latent part; "
    "0 from lengths[b] on and where there is no page",
    source="FlashMLA's documented cache layouts; vLLM's cp_gather_and_upconvert_fp8_kv_cache",
    reference=reference,
    fake=fake,
    bytes=moved_bytes,
    fill=fill,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(
        ratio=1.0,
        ceiling=0.0,
        ulps=0.0,
        reason="a code times a power of two is exact in float32, then rounded once to the dtype that was asked for",
    ),
    attributes=(
        Attribute(name="latent, width", meaning="how much of a row is quantised, and its whole width"),
        Attribute(name="rows", meaning="how many rows are returned for each request, whatever its length"),
        Attribute(name="dtype", meaning="of the result"),
        Attribute(name="layout", meaning="plain, fp8_656, or fp8_584:G with G rows in a page (64 without it)"),
        Attribute(name="missing pages", meaning="-1 or any number beyond the cache: rows of 0"),
    ),
    verified_against="a reader that goes byte by byte, by Python's struct and ml_dtypes",
)

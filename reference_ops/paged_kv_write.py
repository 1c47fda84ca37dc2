"""Write rows into a paged latent cache, in place.

Shape suffixes: N rows, P pages, G rows of a page, X bytes of a piece, C = L + R row width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops import _cache_layouts as layouts
from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["OP", "fake", "reference", "validate"]

NAME = "day0::paged_kv_write"


def validate(
    pages: torch.Tensor, rows_NC: torch.Tensor, slots_N: torch.Tensor, latent: int, layout: str = "plain"
) -> tuple[layouts.Layout, int]:
    """Refuse arguments that break the contract; return the layout and how many rows a page has."""
    check = Arguments(NAME)
    check.shape("rows", rows_NC, "NC")
    check.shape("slots", slots_N, "N")
    check.floating("rows", rows_NC)
    check.dtype("slots", slots_N, torch.int32, torch.int64)
    found = layouts.read_layout(check, layout, latent, rows_NC.shape[-1])
    return found, layouts.check_pages(check, pages, found)


def reference(
    pages: torch.Tensor, rows_NC: torch.Tensor, slots_N: torch.Tensor, latent: int, layout: str = "plain"
) -> None:
    """Write each row to its slot, page number times rows of a page plus row in the page; `pages` may be strided.

    A row whose slot is below 0 or beyond the cache is skipped. Slots that are written are distinct. What the values
    are decides nothing about the course of it, so that it can be traced without them.
    """
    found, page = validate(pages, rows_NC, slots_N, latent, layout)
    places = pages.shape[0] * page
    if not places or not rows_NC.shape[0]:
        return
    # In int64: a large cache has more slots than int32 counts, and a number beyond it would wrap.
    valid_N = (slots_N >= 0) & (slots_N.to(torch.int64) < places)
    # A skipped row does once more what some row that counts does; if none does, it writes what is there already.
    some_1 = valid_N.to(torch.uint8).argmax()[None]
    source_N = torch.where(valid_N, torch.arange(len(slots_N), device=slots_N.device), some_1)
    any_N1 = valid_N.any()[None, None]
    slot_N = torch.where(any_N1[0], slots_N[source_N], 0).to(torch.int64)
    block_N = slot_N // page
    offset_N = slot_N - block_N * page
    pieces = layouts.pack(rows_NC, found, pages.dtype)
    for view_PGX, piece_NX in zip(layouts.views(pages, found, page), pieces, strict=True):
        written_NX = torch.where(any_N1, piece_NX[source_N], view_PGX[block_N, offset_N])
        view_PGX.index_put_((block_N, offset_N), written_NX)


def fake(pages: torch.Tensor, rows_NC: torch.Tensor, slots_N: torch.Tensor, latent: int, layout: str = "plain") -> None:
    """Nothing is returned."""
    validate(pages, rows_NC, slots_N, latent, layout)


def moved_bytes(
    pages: torch.Tensor, rows_NC: torch.Tensor, slots_N: torch.Tensor, latent: int, layout: str = "plain"
) -> int:
    """Rows and slots are read, as many rows are written as they are stored: never the whole cache."""
    found, _ = validate(pages, rows_NC, slots_N, latent, layout)
    stored = found.width * pages.element_size() if found.kind == "plain" else found.data_bytes + found.scale_bytes
    read = rows_NC.numel() * rows_NC.element_size() + slots_N.numel() * slots_N.element_size()
    return int(read + rows_NC.shape[0] * stored)


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Rows in every place of the pages, and distinct slots, about one in eight skipped."""
    pages, rows_NC, slots_N, latent = args[:4]
    found, page = validate(pages, rows_NC, slots_N, latent, kwargs.get("layout", args[4] if len(args) > 4 else "plain"))
    layouts.fill_pages(pages, found, page, generator)
    places = pages.shape[0] * page
    order = torch.randperm(max(places, len(slots_N)), generator=generator)[: len(slots_N)]
    skipped = torch.rand(order.shape, generator=generator) < 0.125
    slots_N.copy_(torch.where((order < places) & ~skipped, order, -1))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Plain pages; odd widths with skipped rows into a strided view; nothing to write; the rows of two real models."""
    for kind, (rows, pages, page, latent, rope), layout, dtype in (
        ("small", (3, 2, 4, 8, 4), "plain", torch.float32),
        ("odd", (5, 3, 3, 5, 3), "fp8_656", torch.bfloat16),
        ("odd", (4, 2, 3, 70, 1), "fp8_584:3", torch.float32),
        ("corner", (2, 1, 1, 1, 0), "plain", torch.bfloat16),
        ("corner", (0, 1, 2, 3, 1), "fp8_584:2", torch.float32),
        ("traced", (6, 2, 64, 512, 64), "fp8_656", torch.bfloat16),
        ("traced", (6, 2, 64, 448, 64), "fp8_584:64", torch.bfloat16),
    ):
        rows_NC = torch.randn(rows, latent + rope, generator=generator).to(dtype)
        found = layouts.read_layout(Arguments(NAME), layout, latent, latent + rope)
        stored = dtype if layout == "plain" else torch.uint8
        # Every second page of a larger cache, as where the pages of several layers lie in one block of memory.
        cache = torch.zeros(2 * pages, *layouts.page_shape(found, page), dtype=stored)[::2]
        slots_N = torch.full((rows,), -1)
        args = (cache, rows_NC, slots_N, latent, layout)
        if kind != "corner":
            fill(args, {}, generator)
        if kind == "odd":
            slots_N[0], slots_N[1], slots_N[2] = -1, pages * page, 0
            slots_N[3:] = torch.arange(4, 4 + rows - 3)
        yield Sample(kind=kind, args=args, kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="writes rows into a paged latent cache, quantising them where the layout does",
    schema='(Tensor(a!) pages, Tensor rows, Tensor slots, int latent, str layout="plain") -> ()',
    mathematics="pages[slot // G, slot % G] = row; E4M3 of row / s with s = 2^ceil(log2(max(largest of a group / 448, "
    "1e-4))) for the latent part, bfloat16 for the rest; a slot that is none skips its row",
    source="FlashMLA's documented cache layouts; vLLM's concat_and_cache_mla (slots)",
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
        reason="a power of two by exact arithmetic and one rounding to the nearest even: one right answer in bytes",
    ),
    attributes=(
        Attribute(name="latent", meaning="how much of a row is quantised; the rest is stored in bfloat16"),
        Attribute(name="layout", meaning="plain, fp8_656, or fp8_584:G with G rows in a page (64 without it)"),
        Attribute(name="skipped rows", meaning="-1, and any slot beyond the cache; written slots are distinct"),
        Attribute(name="not finite", meaning="stored as the code of NaN; takes no part in the scale of its group"),
    ),
    verified_against="a packer that goes byte by byte, by Python's struct and ml_dtypes",
)

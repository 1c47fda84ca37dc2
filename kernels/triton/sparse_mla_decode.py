"""day0::sparse_mla_decode in Triton: chosen rows are gathered in tiles, each request split over many programs.

Shape suffixes: B batch, S queries, H heads, P pages, G rows of a page, K chosen rows, L latent, C = L + R row width.
"""

from __future__ import annotations

import math

import torch

from day0.devices.current import on_its_device
from day0.implementation import Constraints, Implementation, Limit, TensorLimit
from day0.kernels.triton._attend import FP8_584, FP8_656, LOG2_E, PLAIN, attend_functions
from day0.kernels.triton._tiles import processors, sizes
from day0.kernels.triton._triton import HALVES, has_triton, next_power_of_2
from day0.reference_ops._cache_layouts import GROUPS, Layout
from day0.reference_ops.sparse_mla_decode import validate

__all__ = ["CHOICES", "FEW", "FEW_CHOICES", "IMPLEMENTATIONS", "TILES"]

TILES = {"rows": 64, "heads": 64, "warps": 8, "stages": 2}
"""Rows and heads of a tile: 64 rows of 576 values, beside 64 heads, fill the shared memory of an H200."""
FEW = {"rows": 64, "heads": 32, "warps": 8, "stages": 1}
"""The same where a few requests leave half of a device idle: a program then has one tile, and waits for its rows."""
CHOICES = FEW_CHOICES = {"rows": (32, 64), "heads": (16, 32, 64), "warps": (4, 8), "stages": (1, 2, 3)}
NUMBERS = {"plain": PLAIN, "fp8_656": FP8_656, "fp8_584": FP8_584}


@on_its_device
def decode(
    q_BSHC: torch.Tensor,
    pages: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    layout: str = "plain",
    topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    bitmap: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out [B, S, H, L] in the dtype of q and the natural log-sum-exp [B, H, S] in float32."""
    found, page = validate(q_BSHC, pages, indices_BSK, latent, scale, layout, topk_length, attn_sink, bitmap)
    batch, queries, heads, width = q_BSHC.shape
    chosen, number = indices_BSK.shape[-1], pages.shape[0] * page
    out_BSHL = q_BSHC.new_empty((batch, queries, heads, latent))
    lse_BHS = q_BSHC.new_empty((batch, heads, queries), dtype=torch.float32)
    if not out_BSHL.numel():
        return out_BSHL, lse_BHS
    if not chosen or not number:
        return out_BSHL.zero_(), lse_BHS.fill_(float("inf"))
    q_BSHC, indices_BSK = q_BSHC.contiguous(), indices_BSK.contiguous()
    pages = pages if pages.stride(-1) == 1 else pages.contiguous()
    tile, block, each, parts = _tile(batch * queries, heads, chosen, q_BSHC.device)
    blocks = -(-heads // block)
    part, log = out_BSHL, lse_BHS
    if parts > 1:
        part = torch.empty(batch * queries * heads * parts, latent, dtype=torch.float32, device=q_BSHC.device)
        log = torch.empty(batch * queries * heads * parts, dtype=torch.float32, device=q_BSHC.device)
    attend, join = attend_functions()
    # What is not given is never read; a pointer stands there all the same.
    length = indices_BSK if topk_length is None else topk_length.contiguous()
    marked = indices_BSK if bitmap is None else bitmap.contiguous().view(torch.uint8)
    sink = log if attn_sink is None else attn_sink.contiguous()
    step_row = found.data_bytes if found.kind == "fp8_584" else pages.stride(1)
    common = {"L": latent, "LP": _width(found), "PARTS": parts, "SINK": attn_sink is not None}
    attend[(batch * queries, blocks, parts)](
        q_BSHC,
        pages,
        indices_BSK,
        length,
        marked,
        sink,
        part,
        log,
        log,
        queries,
        heads,
        chosen,
        number,
        each,
        page,
        pages.shape[0],
        0,
        pages.stride(0),
        step_row,
        page * found.data_bytes,
        1,
        0,
        heads * queries,
        1,
        queries,
        scale * LOG2_E,
        C=width,
        R=width - latent,
        RP=next_power_of_2(width - latent, 16),
        HEADS=block,
        TILE=tile["rows"],
        LAYOUT=NUMBERS[found.kind],
        ALIGNED=_aligned(found, pages),
        GROUP=GROUPS.get(found.kind, 1),
        SCALES=found.scales,
        SCALE_BYTES=found.scale_bytes,
        LENGTH=topk_length is not None,
        BITMAP=bitmap is not None,
        MOST=False,
        num_warps=tile["warps"],
        num_stages=tile["stages"],
        **common,
    )
    if parts > 1:
        join[(batch * queries, heads)](part, log, sink, out_BSHL, lse_BHS, queries, heads, num_warps=4, **common)
    return out_BSHL, lse_BHS


def _width(found: Layout) -> int:
    """Return how many latent values a tile has: a power of two, and whole groups where they share scales."""
    group = GROUPS.get(found.kind, 16)
    return group * next_power_of_2(-(-found.latent // group))


def _aligned(found: Layout, pages: torch.Tensor) -> bool:
    """Say whether scales and the rest of a row lie where their size divides the address, wherever the row is."""
    steps = (pages.data_ptr(), pages.stride(0), found.data_bytes, found.latent)
    return found.kind != "plain" and all(step % 4 == 0 for step in steps)


def _tile(queries: int, heads: int, chosen: int, device: torch.device) -> tuple[dict[str, int], int, int, int]:
    """Return sizes of tiles, heads of a program, rows of a part and the number of parts."""
    for name, defaults in (("sparse_mla_decode", TILES), ("sparse_mla_decode_few", FEW)):
        tile = sizes(name, defaults, device)
        block = min(tile["heads"], next_power_of_2(heads, 16))
        programs = queries * -(-heads // block)
        each, parts = _parts(programs, chosen, tile["rows"], device)
        if 2 * programs * parts > processors(device):
            break
    return tile, block, each, parts


def _parts(programs: int, chosen: int, rows: int, device: torch.device) -> tuple[int, int]:
    """Return how many rows a part has, and how many parts: as many as the device runs at once."""
    parts = max(1, min(-(-chosen // rows), processors(device) // programs))
    each = math.ceil(chosen / parts / rows) * rows
    return each, -(-chosen // each)


def _plain_rows(dtype: str) -> Constraints:
    """Queries and rows of one dtype: a matrix unit multiplies no two."""
    one = frozenset({dtype})
    return Constraints(
        first_dtype=one, arguments={"pages": TensorLimit(dtypes=one), "layout": Limit(one_of=("plain",))}
    )


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::sparse_mla_decode",
        contract=1,
        id="triton",
        version="1.2",
        kind="kernel",
        run=decode,
        why="gathers chosen rows in tiles for a matrix unit; one request is split over the whole device",
        devices=("cuda",),
        constraints=Constraints(
            arguments={
                "q": TensorLimit(sizes={-1: Limit(at_most=640)}),
                "latent": Limit(at_least=1, at_most=512),
                "attn_sink": TensorLimit(dtypes=frozenset({"float32"})),
            },
            any_of=(
                *(_plain_rows(dtype) for dtype in sorted(HALVES)),
                # Values under a scale fit bfloat16 exactly, and float16 not always.
                Constraints(
                    first_dtype=frozenset({"bfloat16"}), arguments={"pages": TensorLimit(dtypes=frozenset({"uint8"}))}
                ),
            ),
        ),
        predicate=has_triton,
        rank=50,
    ),
)

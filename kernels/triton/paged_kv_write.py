"""day0::paged_kv_write in Triton: one program quantises a row and writes it where it belongs.

Shape suffixes: N rows, P pages, G rows of a page, X bytes of a piece, C = L + R row width.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from day0.devices.current import on_its_device
from day0.implementation import Accepted, Call, Constraints, Implementation, Limit, Rejected, TensorFacts, TensorLimit
from day0.kernels.triton._math import functions
from day0.kernels.triton._tiles import sizes
from day0.kernels.triton._triton import FLOATS, has_triton, next_power_of_2, triton_and_language
from day0.reference_ops import _cache_layouts as layouts
from day0.reference_ops.paged_kv_write import validate

__all__ = ["CHOICES", "IMPLEMENTATIONS", "TILES"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next is."""
power_above: Any = None

TILES = {"warps": 4}
CHOICES = {"warps": (1, 2, 4, 8)}
LARGEST_ROW = 8192


@cache
def _kernels() -> tuple[Any, Any]:
    """Return the kernel for rows that are stored as they are, and the one for those that are quantised."""
    global tl, power_above
    triton, tl = triton_and_language()
    power_above = functions().power_above

    @triton.jit
    def plain(pages, rows, slots, places, page, step_page, step_row, C: tl.constexpr, CP: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        slot = tl.load(slots + row).to(tl.int64)
        if slot >= 0 and slot < places:
            c = tl.arange(0, CP)
            to = pages + (slot // page) * step_page + (slot % page) * step_row
            value = tl.load(rows + row * C + c, mask=c < C, other=0.0)
            # Between two dtypes of 16 bits hardware goes by float32; within one the bits stay.
            if value.dtype != pages.dtype.element_ty:
                value = value.to(tl.float32).to(pages.dtype.element_ty)
            tl.store(to + c, value, mask=c < C)

    @triton.jit
    def quantised(
        pages,
        rows,
        slots,
        places,
        page,
        step_page,
        step_row,
        scales_at,
        floor,
        L: tl.constexpr,
        R: tl.constexpr,
        RP: tl.constexpr,
        GROUP: tl.constexpr,
        SCALES: tl.constexpr,
        SP: tl.constexpr,
        APART: tl.constexpr,
        SCALE_BYTES: tl.constexpr,
        SBP: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        slot = tl.load(slots + row).to(tl.int64)
        if slot >= 0 and slot < places:
            begin = pages + (slot // page) * step_page
            to = begin + (slot % page) * step_row
            k, j = tl.arange(0, SP)[:, None], tl.arange(0, GROUP)[None, :]
            l = k * GROUP + j
            value = tl.load(rows + row * (L + R) + l, mask=l < L, other=0.0).to(tl.float32)
            # What is not finite takes no part in the scale of its group.
            finite = tl.abs(value) < float("inf")
            power = power_above(tl.maximum(tl.max(tl.where(finite, tl.abs(value), 0.0), 1), floor))
            # Times the inverse: a power of two, so the quotient itself.
            scaled = value * ((127 - power) << 23).to(tl.float32, bitcast=True)[:, None]
            scaled = tl.where(scaled > 448.0, 448.0, scaled)
            scaled = tl.where(scaled < -448.0, -448.0, scaled)
            code = scaled.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
            tl.store(to + l, tl.where(finite, code, 0x7F).to(tl.uint8), mask=l < L)
            s = tl.arange(0, SP)
            if APART:
                # One byte for each scale, then zeros, behind the rows of the whole page.
                b = tl.arange(0, SBP)
                spread = tl.sum(tl.where(b[:, None] == s[None, :], power[None, :] + 127, 0), 1)
                byte = tl.where(b < SCALES, spread, 0).to(tl.uint8)
                tl.store(begin + scales_at + (slot % page) * SCALE_BYTES + b, byte, mask=b < SCALE_BYTES)
                rope_at = L
            else:
                # Byte by byte: where a row begins need not be a multiple of four.
                bits = (power + 127) << 23
                for byte in tl.static_range(4):
                    tl.store(to + L + 4 * s + byte, ((bits >> (8 * byte)) & 0xFF).to(tl.uint8), mask=s < SCALES)
                rope_at = L + 4 * SCALES
            r = tl.arange(0, RP)
            rope = tl.load(rows + row * (L + R) + L + r, mask=r < R, other=0.0)
            bits = rope.to(tl.bfloat16).to(tl.uint16, bitcast=True)
            if rope.dtype != tl.bfloat16:
                # Hardware's NaN has other bits than torch's.
                bits = tl.where(tl.abs(rope.to(tl.float32)) <= float("inf"), bits, 0x7FC0).to(tl.uint16)
            tl.store(to + rope_at + 2 * r, (bits & 0xFF).to(tl.uint8), mask=r < R)
            tl.store(to + rope_at + 2 * r + 1, (bits >> 8).to(tl.uint8), mask=r < R)

    return plain, quantised


@on_its_device
def write(
    pages: torch.Tensor, rows_NC: torch.Tensor, slots_N: torch.Tensor, latent: int, layout: str = "plain"
) -> None:
    """Write each row to its slot in `pages`; a slot that is none skips its row."""
    found, page = validate(pages, rows_NC, slots_N, latent, layout)
    places = pages.shape[0] * page
    count, width = rows_NC.shape
    if not places or not count:
        return
    rows_NC, slots_N = rows_NC.contiguous(), slots_N.contiguous()
    warps = sizes("paged_kv_write", TILES, pages.device)["warps"]
    plain, quantised = _kernels()
    if found.kind == "plain":
        plain[(count,)](
            pages,
            rows_NC,
            slots_N,
            places,
            page,
            pages.stride(0),
            pages.stride(1),
            C=width,
            CP=next_power_of_2(width),
            num_warps=warps,
        )
        return
    apart = found.kind == "fp8_584"
    quantised[(count,)](
        pages,
        rows_NC,
        slots_N,
        places,
        page,
        pages.stride(0),
        found.data_bytes if apart else pages.stride(1),
        page * found.data_bytes,
        layouts.FLOOR,
        L=latent,
        R=width - latent,
        RP=next_power_of_2(width - latent),
        GROUP=layouts.GROUPS[found.kind],
        SCALES=found.scales,
        SP=next_power_of_2(found.scales),
        APART=apart,
        SCALE_BYTES=found.scale_bytes,
        SBP=next_power_of_2(found.scale_bytes),
        num_warps=warps,
    )


def fits(call: Call) -> Accepted | Rejected:
    """Triton is installed, and the values of a cached row lie side by side."""
    pages = call.arguments["pages"]
    if isinstance(pages, TensorFacts) and pages.shape and pages.shape[-1] > 1 and pages.stride[-1] != 1:
        return Rejected(f"values of a cached row are {pages.stride[-1]} places apart, and not side by side")
    return has_triton(call)


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::paged_kv_write",
        contract=1,
        id="triton",
        version="1.0",
        kind="kernel",
        run=write,
        why="only the rows that are written move; scales, codes and the rest of a row in one launch",
        devices=("cuda",),
        constraints=Constraints(
            arguments={
                "pages": TensorLimit(dtypes=FLOATS | {"uint8"}),
                "rows": TensorLimit(dtypes=FLOATS, sizes={-1: Limit(at_most=LARGEST_ROW)}),
            },
        ),
        predicate=fits,
        rank=50,
    ),
)

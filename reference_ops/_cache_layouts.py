"""How a row of a latent cache lies in a page: written and read in plain torch.

Shape suffixes: N rows, P pages, G rows of a page, C = L + R row width (L latent, R rope), X bytes.

`plain`       pages [P, G, C], floating
`fp8_656`     pages [P, G, X] uint8, row after row: L codes, ceil(L / 128) scales as float32, R bfloat16
`fp8_584:G`   pages [P, X] uint8: L codes and R bfloat16 of all G rows, then ceil(L / 64) scale bytes of all G rows,
              filled up to 8 for each row; the page filled up to a multiple of 576. Without `:G` it means 64 rows.

Codes are E4M3; scales are powers of two, as bytes E8M0. The rope part is never quantised. The numbers in the names are
the bytes of a row at the widths of the models that brought them: 512 + 64 and 448 + 64. Written from the layouts that
FlashMLA documents; the scale is that of its tests, 2^ceil(log2(max(largest / 448, 1e-4))).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from day0.reference_ops._checks import Arguments

__all__ = ["Layout", "check_pages", "fill_pages", "pack", "page_shape", "read_layout", "unpack", "views"]

GROUPS = {"fp8_656": 128, "fp8_584": 64}
"""How many values of the latent part share a scale."""
DEFAULT_PAGE = 64
PAGE_MULTIPLE = 576
SCALE_MULTIPLE = 8
LARGEST = 448.0
"""Of E4M3."""
FLOOR = 1e-4 * LARGEST
"""A group whose values are all smaller is stored as if its largest were this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """A layout at the widths of one cache."""

    kind: str
    latent: int
    width: int
    page: int
    """Rows of a page; 0 where the shape of the pages says it."""

    @property
    def rope(self) -> int:
        """How many values stand unquantised behind the latent part."""
        return self.width - self.latent

    @property
    def scales(self) -> int:
        """How many scales a row has."""
        return -(-self.latent // GROUPS[self.kind]) if self.kind in GROUPS else 0

    @property
    def data_bytes(self) -> int:
        """Bytes of a row without what stands apart from it."""
        inside = 4 * self.scales if self.kind == "fp8_656" else 0
        return self.latent + inside + 2 * self.rope

    @property
    def scale_bytes(self) -> int:
        """Bytes of a row that stand behind all rows of the page."""
        return -(-self.scales // SCALE_MULTIPLE) * SCALE_MULTIPLE if self.kind == "fp8_584" else 0


def read_layout(check: Arguments, layout: str, latent: int, width: int) -> Layout:
    """Read the attribute `layout`. Refuses a name that is none, and a latent part that is no part of the row."""
    kind, colon, page = layout.partition(":")
    known = kind in ("plain", *GROUPS) and (not colon or (kind == "fp8_584" and page.isdecimal() and int(page) > 0))
    check.true("layout", known, "plain, fp8_656, fp8_584 or fp8_584:ROWS_OF_A_PAGE", f"'{layout}'")
    check.true("latent", 0 < latent <= width, f"1 to the row width {width}", latent)
    rows = int(page) if colon else DEFAULT_PAGE if kind == "fp8_584" else 0
    return Layout(kind=kind, latent=latent, width=width, page=rows)


def page_shape(layout: Layout, page: int) -> tuple[int, ...]:
    """Return the shape of one page of `page` rows: what follows P in the shape of the pages."""
    if layout.kind == "fp8_584":
        return (-(-page * (layout.data_bytes + layout.scale_bytes) // PAGE_MULTIPLE) * PAGE_MULTIPLE,)
    return (page, layout.width if layout.kind == "plain" else layout.data_bytes)


def check_pages(check: Arguments, pages: torch.Tensor, layout: Layout) -> int:
    """Refuse pages that do not fit the layout; return how many rows a page has."""
    dims = 2 if layout.kind == "fp8_584" else 3
    check.true("pages", pages.dim() == dims, f"{dims} dimensions for {layout.kind}", pages.dim())
    if layout.kind == "plain":
        check.floating("pages", pages)
    else:
        check.dtype("pages", pages, torch.uint8)
    page = layout.page or int(pages.shape[1])
    check.true("pages", page > 0, "at least one row in a page", list(pages.shape))
    expected = page_shape(layout, page)
    check.true("pages", tuple(pages.shape[1:]) == expected, f"shape {['P', *expected]}", list(pages.shape))
    return page


def views(pages: torch.Tensor, layout: Layout, page: int) -> tuple[torch.Tensor, ...]:
    """Return views [P, G, X] of the pages, one for each piece that a row consists of."""
    if layout.kind != "fp8_584":
        return (pages,)
    end = page * layout.data_bytes
    data_PGX = pages[:, :end].unflatten(1, (page, layout.data_bytes))
    scales_PGX = pages[:, end : end + page * layout.scale_bytes].unflatten(1, (page, layout.scale_bytes))
    return data_PGX, scales_PGX


def pack(rows_NC: torch.Tensor, layout: Layout, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return the pieces [N, X] of rows, in the order of `views`; `dtype` is that of plain pages.

    What is not finite becomes the code of NaN and does not take part in the scale.
    """
    if layout.kind == "plain":
        return (rows_NC.to(dtype, copy=True),)
    latent_NL = rows_NC[:, : layout.latent].to(torch.float32)
    power_NK = _power_bytes(latent_NL, layout)
    scaled_NL = latent_NL / _spread(power_NK, layout)
    scaled_NL = torch.where(torch.isfinite(scaled_NL), scaled_NL.clamp(-LARGEST, LARGEST), float("nan"))
    codes_NL = scaled_NL.to(torch.float8_e4m3fn).view(torch.uint8)
    rope_NX = _bytes(rows_NC[:, layout.latent :].to(torch.bfloat16))
    if layout.kind == "fp8_656":
        scales_NX = _bytes(_powers(power_NK))
        return (torch.cat((codes_NL, scales_NX, rope_NX), dim=1),)
    scales_NX = torch.nn.functional.pad(power_NK, (0, layout.scale_bytes - layout.scales))
    return torch.cat((codes_NL, rope_NX), dim=1), scales_NX


def _power_bytes(latent_NL: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return k + 127 for the smallest k with largest / 448 <= 2^k of each group, [N, K] uint8, by exact arithmetic."""
    group = GROUPS[layout.kind]
    sizes_NL = torch.where(torch.isfinite(latent_NL), latent_NL.abs(), 0.0)
    filled_NL = torch.nn.functional.pad(sizes_NL, (0, layout.scales * group - layout.latent))
    largest_NK = filled_NL.unflatten(1, (layout.scales, group)).amax(dim=-1).clamp(min=FLOOR)
    mantissa_NK, exponent_NK = torch.frexp(largest_NK)
    # 448 is 0.875 * 2^9.
    return (exponent_NK - 9 + (mantissa_NK > 0.875).to(torch.int32) + 127).to(torch.uint8)


def _spread(power_NK: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return the scale of each value of the latent part, from bytes E8M0."""
    return _powers(power_NK).repeat_interleave(GROUPS[layout.kind], dim=-1)[..., : layout.latent]


def _powers(bytes_NK: torch.Tensor) -> torch.Tensor:
    """Return 2^(byte - 127) in float32, NaN for 255, by its bits: few devices hold E8M0, and powers may round."""
    bits_NK = bytes_NK.to(torch.int32) * 2**23
    # The smallest is subnormal.
    bits_NK = torch.where(bytes_NK == 0, 2**22, bits_NK)
    return torch.where(bytes_NK == 255, 0x7FC00000, bits_NK).view(torch.float32)


def _bytes(values: torch.Tensor) -> torch.Tensor:
    # `contiguous` keeps odd strides where a dimension has one element, and a view as bytes looks at those too.
    return values.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def unpack(pieces: tuple[torch.Tensor, ...], layout: Layout, dtype: torch.dtype) -> torch.Tensor:
    """Return rows [..., C] in `dtype` from their pieces [..., X]."""
    if layout.kind == "plain":
        return pieces[0].to(dtype, copy=True)
    data, latent, rope = pieces[0], layout.latent, 2 * layout.rope
    codes = _as(data[..., :latent], torch.float8_e4m3fn).to(torch.float32)
    if layout.kind == "fp8_656":
        scale = _as(data[..., latent : latent + 4 * layout.scales], torch.float32)
        spread = scale.repeat_interleave(GROUPS[layout.kind], dim=-1)[..., :latent]
    else:
        spread = _spread(pieces[1][..., : layout.scales], layout)
    tail = _as(data[..., data.shape[-1] - rope :], torch.bfloat16)
    return torch.cat(((codes * spread).to(dtype), tail.to(dtype)), dim=-1)


def _as(piece: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Read bytes as values: copied, because where they stand in a row need not be a multiple of the value's size."""
    if not piece.shape[-1]:  # torch looks at the strides of nothing, too
        return piece.new_zeros(piece.shape, dtype=dtype)
    return piece.clone(memory_format=torch.contiguous_format).view(dtype)


def fill_pages(pages: torch.Tensor, layout: Layout, page: int, generator: torch.Generator) -> None:
    """Write random rows into every place of quantised pages, whose bytes are not values by themselves."""
    if layout.kind == "plain" or not pages.numel():
        return
    rows_NC = torch.randn(pages.shape[0] * page, layout.width, generator=generator)
    for view_PGX, piece_NX in zip(views(pages, layout, page), pack(rows_NC, layout, pages.dtype), strict=True):
        view_PGX.copy_(piece_NX.unflatten(0, (pages.shape[0], page)))

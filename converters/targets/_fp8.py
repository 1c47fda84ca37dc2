"""FP8 with power-of-two scales, for any block: exponents move, and values do not round where that is possible.

Shape suffixes: R rows of a tile, C columns, G groups of 32, M and N blocks of the tile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from day0.converters.blocks import LEAST_SCALE, NAN_BYTE, Bounds, bounds_of, group_windows, present, reduce_blocks
from day0.converters.formats._mx import read_mx, read_scales
from day0.converters.reading import Reader
from day0.converters.tables import E4M3, E4M3FNUZ, HIGHEST, LOWEST, NAN_ROW, FloatLayout, fp8_table
from day0.converters.targets._lookup import count_codes, look_up
from day0.converters.targets._nan import has_nan, nan_verdict, value_nans
from day0.converters.targets._target import ROWS, Job, Made, Target
from day0.converters.verdict import Verdict, worst
from day0.converters.weight import GROUP, MxTile, Weight
from day0.converters.writer import Output
from day0.records.convert import ConversionParameters

__all__ = ["fp8_target"]

MX_BOUND = "2^-18.5 of the largest value that a block can hold"
FLUSHED_BOUND = "2^-12.5 of the largest value that a block can hold"
VALUE_BOUND = "2^-4 of the value, or 2^-10 of the scale where that is more"
VALUES_PER_TILE = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """Rows and columns that share a scale; 0 for all of them."""

    rows: int
    columns: int

    def sizes(self, weight: Weight) -> tuple[int, int]:
        return self.rows or weight.rows, self.columns or weight.columns


def _scale_name(weight: Weight, suffix: str) -> str:
    """Return the name that the scale gets; DeepSeek-V4 calls it `X.scale`, and a family keeps its names."""
    short = weight.name.removesuffix("weight") + "scale"
    found = weight.parts.get("scales")
    return short if found is not None and found.name == short else weight.name + suffix


def _layout(parameters: ConversionParameters) -> FloatLayout:
    return E4M3FNUZ if parameters.fnuz else E4M3


def fp8_target(
    name: str,
    summary: str,
    *,
    rows: int,
    columns: int,
    suffix: str,
    finer: tuple[str, ...],
    quantisation: Callable[[ConversionParameters], dict[str, Any]],
) -> Target:
    """Make the target of one block shape."""
    block = _Block(rows=rows, columns=columns)

    def outputs(weight: Weight, parameters: ConversionParameters) -> Mapping[str, Output]:
        block_rows, block_columns = block.sizes(weight)
        grid: tuple[int, ...] = (-(-weight.rows // block_rows), -(-weight.columns // block_columns))
        lead = (len(weight.experts),) if weight.stacked else ()
        if not rows and not lead:
            grid = (1,)  # as the engines have it
        scales = "F8_E8M0" if parameters.scales == "e8m0" else "F32"
        return {
            "weight": Output(name=weight.name, dtype=_layout(parameters).dtype, shape=weight.shape),
            "scale": Output(name=_scale_name(weight, suffix), dtype=scales, shape=(*lead, *grid)),
        }

    def tile(job: Job, source: MxTile | torch.Tensor) -> Made:
        return _from_mx(job, source, block) if isinstance(source, MxTile) else _from_values(job, source, block)

    def scan_tile(job: Job, bytes_RG: torch.Tensor, codes: Callable[[], torch.Tensor]) -> Verdict:
        return _scan(job, bytes_RG, codes, block)

    def prepare(job: Job, reader: Reader) -> Any:
        if block.rows:
            return None
        return _mx_scale(job, reader) if job.weight.format.mx else _value_scale(job, reader)

    def keeps(weight: Weight, parameters: ConversionParameters) -> bool:
        if weight.format.name != "fp8" or weight.parts["payload"].dtype != _layout(parameters).dtype:
            return False
        wanted = outputs(weight, parameters)["scale"]
        scales = weight.parts["scales"]
        if weight.parts["payload"].shape != weight.shape or len(weight.segments) > 1:
            return False
        if scales.dtype in ("F8_E8M0", "U8") and wanted.dtype == "F32":
            return weight.facts["block"] == block.sizes(weight) and scales.shape == wanted.shape
        return weight.facts["block"] == block.sizes(weight) and (scales.dtype, scales.shape) == (
            wanted.dtype,
            wanted.shape,
        )

    return Target(
        name=name,
        summary=summary,
        from_mx="exact where the exponents of a block span at most 14 (11 without subnormals)",
        from_values=f"bounded: {VALUE_BOUND}; exact where nothing had to be rounded",
        outputs=outputs,
        tile=tile,
        scan_tile=scan_tile,
        prepare=prepare,
        bits=4,
        bound=VALUE_BOUND,
        # One scale for a part of a row would become one for a part of a column.
        transposes=rows != 1,
        finer=finer,
        keeps=keeps,
        quantisation=quantisation,
    )


# ---------------------------------------------------------------------------------------------- four-bit codes


def _bounds(job: Job, bytes_RG: torch.Tensor, codes_RP: torch.Tensor | None, block: _Block) -> Bounds:
    rows, columns = block.sizes(job.weight)
    # Row blocks are whole rows, and blocks of columns are whole groups: both divide a tile.
    return bounds_of(_layout(job.parameters), bytes_RG, codes_RP, min(rows, ROWS), -(-columns // GROUP))


def _scaled_rows(bytes_RG: torch.Tensor, scale_MN: torch.Tensor, block: _Block, weight: Weight) -> torch.Tensor:
    """Return the row of the table for every group."""
    rows, columns = block.sizes(weight)
    wide_MG = scale_MN.repeat_interleave(-(-columns // GROUP), 1)[:, : bytes_RG.shape[1]]
    least_MG = (wide_MG + (127 + LOWEST)).to(torch.int16)
    height = min(rows, len(bytes_RG))
    if height and len(bytes_RG) % height == 0:
        # Whole blocks: each scale meets its rows without being repeated for them.
        k = (bytes_RG.unflatten(0, (-1, height)) - least_MG.unsqueeze(1)).flatten(0, 1)
    else:
        k = bytes_RG - least_MG.repeat_interleave(height, 0)[: len(bytes_RG)]
    rows_RG: torch.Tensor = k.clamp_(0, HIGHEST - LOWEST).to(torch.uint8)
    if has_nan(bytes_RG):
        rows_RG.masked_fill_(bytes_RG == NAN_BYTE, NAN_ROW)
    return rows_RG


def _judged(
    job: Job, bytes_RG: torch.Tensor, codes_RP: torch.Tensor | None, bounds: Bounds, block: _Block
) -> tuple[Verdict, torch.Tensor, torch.Tensor]:
    """Return the verdict, the rows of the table and the scales [M, N]; codes are needed where not all is settled."""
    scale_MN = bounds.scale()
    rows_RG = _scaled_rows(bytes_RG, scale_MN, block, job.weight)
    verdict = nan_verdict(job, bytes_RG)
    open_MN = scale_MN > bounds.normal
    if bool(open_MN.any()) and codes_RP is not None:
        rows, columns = block.sizes(job.weight)
        where = open_MN.repeat_interleave(min(rows, len(bytes_RG)), 0)[: len(bytes_RG)]
        where = where.repeat_interleave(-(-columns // GROUP), 1)[:, : bytes_RG.shape[1]]
        flush = job.parameters.no_subnormal and job.parameters.allow_bounded
        counted = count_codes(codes_RP, rows_RG, where, fp8_table(_layout(job.parameters), flush=flush))
        bound = FLUSHED_BOUND if flush else MX_BOUND
        verdict = worst(
            verdict,
            Verdict(changed=counted.changed, subnormal=counted.subnormal, bound=bound if counted.changed else ""),
        )
    return verdict, rows_RG, scale_MN


def _from_mx(job: Job, source: MxTile, block: _Block) -> Made:
    bounds = job.prepared or _bounds(job, source.bytes_RG, source.codes_RP, block)
    verdict, rows_RG, scale_MN = _judged(job, source.bytes_RG, source.codes_RP, bounds, block)
    flush = job.parameters.no_subnormal and job.parameters.allow_bounded
    table = fp8_table(_layout(job.parameters), flush=flush)
    words = look_up(job, source.codes_RP, rows_RG, table)
    return Made(tensors={"weight": words.view(torch.uint8), "scale": _stored(job, scale_MN, block)}, verdict=verdict)


def _scan(job: Job, bytes_RG: torch.Tensor, codes: Callable[[], torch.Tensor], block: _Block) -> Verdict:
    bounds = job.prepared or _bounds(job, bytes_RG, None, block)
    if bool(bounds.settled().all()):
        return nan_verdict(job, bytes_RG)
    codes_RP = codes()
    bounds = job.prepared or _bounds(job, bytes_RG, codes_RP, block)
    return _judged(job, bytes_RG, codes_RP, bounds, block)[0]


def _mx_scale(job: Job, reader: Reader) -> Bounds:
    """Return what a whole matrix asks: from its scales, and from its codes where these do not settle it."""
    layout, weight = _layout(job.parameters), job.weight

    def asked(*, look: bool) -> Bounds:
        found: Bounds | None = None
        for first in range(0, weight.rows, ROWS):
            last = min(first + ROWS, weight.rows)
            if look:
                part = read_mx(weight, reader, job.expert, first, last)
                groups = group_windows(layout, part.bytes_RG, present(part.codes_RP))
            else:
                groups = group_windows(layout, read_scales(weight, reader, job.expert, first, last), None)
            one = reduce_blocks(groups, last - first, weight.columns // GROUP)
            found = one if found is None else found.joined(one)
        if found is None:
            empty = torch.zeros((1, 1), dtype=torch.int16)
            return Bounds(top=empty, exact=empty, normal=empty)
        return found

    plain = asked(look=False)
    return plain if bool(plain.settled().all()) else asked(look=True)


def _stored(job: Job, scale_MN: torch.Tensor, block: _Block) -> torch.Tensor:
    """Return 2^b in the dtype of the scales; of a scale for the whole matrix only with its first tile."""
    if not block.rows and job.first:
        return scale_MN.new_empty((0,), dtype=torch.uint8)
    byte = scale_MN.to(torch.int32) + 127
    if job.parameters.scales == "e8m0":
        return byte.to(torch.uint8)
    return (byte << 23).view(torch.float32)


# ------------------------------------------------------------------------------------------------- other values


def _power_for(layout: FloatLayout, largest: torch.Tensor) -> torch.Tensor:
    """Return the smallest power of two with which the largest magnitude does not overflow."""
    mantissa, exponent = torch.frexp(largest)
    # 448 is 0.875 * 2^9, 240 is 0.9375 * 2^8.
    limit, power = (0.9375, 8) if layout is E4M3FNUZ else (0.875, 9)
    b = exponent - power + (mantissa > limit).to(exponent.dtype)
    return torch.where(largest > 0, b.clamp(min=LEAST_SCALE), 0)


def _value_scale(job: Job, reader: Reader) -> torch.Tensor:
    weight = job.weight
    largest = torch.zeros(())
    if weight.format.values is None:
        raise TypeError(weight.format.name)
    for first in range(0, weight.rows, ROWS):
        values = weight.format.values(weight, reader, job.expert, first, min(first + ROWS, weight.rows))
        if values.numel():
            largest = torch.maximum(largest, torch.nan_to_num(values).abs().max())
    return _power_for(_layout(job.parameters), largest).view(1, 1)


def _from_values(job: Job, values_RC: torch.Tensor, block: _Block) -> Made:
    layout = _layout(job.parameters)
    rows, columns = block.sizes(job.weight)
    found = value_nans(job, values_RC)
    if job.prepared is None:
        largest = _block_amax(torch.nan_to_num(values_RC).abs(), min(rows, ROWS), columns)
        scale_MN = _power_for(layout, largest)
    else:
        scale_MN = job.prepared
    wide = scale_MN.repeat_interleave(min(rows, len(values_RC)) if rows > 1 else 1, 0)[: len(values_RC)]
    wide = wide.repeat_interleave(columns, 1)[:, : values_RC.shape[1]]
    stored, verdict = _rounded(job, values_RC, wide, layout)
    return Made(tensors={"weight": stored, "scale": _stored(job, scale_MN, block)}, verdict=worst(found, verdict))


def _rounded(
    job: Job, values_RC: torch.Tensor, power_RC: torch.Tensor, layout: FloatLayout
) -> tuple[torch.Tensor, Verdict]:
    top = 240.0 if layout is E4M3FNUZ else 448.0
    dtype = torch.float8_e4m3fnuz if layout is E4M3FNUZ else torch.float8_e4m3fn
    # Clamped first: beyond the largest value, what a cast does differs between devices and releases.
    scaled = torch.ldexp(values_RC, -power_RC).clamp_(-top, top)
    if not layout.signed_zero:
        scaled = torch.where(scaled == 0, 0.0, scaled)
    low = 2.0**layout.lowest_normal
    stored = scaled.to(dtype)
    if job.parameters.no_subnormal and job.parameters.allow_bounded:
        stored = torch.where(stored.to(torch.float32).abs() < low, 0.0, stored.to(torch.float32)).to(dtype)
    again = stored.to(torch.float32)
    differ = (torch.ldexp(again, power_RC) != values_RC) & ~values_RC.isnan()
    verdict = Verdict(
        changed=int(differ.sum()),
        subnormal=int(((again.abs() < low) & (again != 0)).sum()),
        bound=VALUE_BOUND if bool(differ.any()) else "",
    )
    return stored.view(torch.uint8), verdict


def _block_amax(values_RC: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    down, right = -values_RC.shape[0] % rows, -values_RC.shape[1] % columns
    if down or right:
        values_RC = torch.nn.functional.pad(values_RC, (0, right, 0, down))
    largest: torch.Tensor = values_RC.unflatten(0, (-1, rows)).unflatten(2, (-1, columns)).amax(dim=(1, 3))
    return largest

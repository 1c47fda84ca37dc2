"""FP8 with multipliers: DeepSeek's `weight_scale_inv` for 128 x 128 values, one for a row, or one for the tensor.

The block comes from the config, else from the ratio of the shapes. Multiplied, whatever the name says of inverses.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from day0.converters.formats import _scaled
from day0.converters.formats._mx import find_scale, matrix, read_rows, refuse_scale, whole
from day0.converters.header import Stored
from day0.converters.reading import Reader
from day0.converters.weight import Format, Weight
from day0.errors import Day0Error

__all__ = ["FORMAT"]

FP8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ")
USUAL = (128, 128)


def find(payload: Stored, tensors: Mapping[str, Stored], quantisation: Mapping[str, object]) -> Weight | None:
    """Claim FP8 with a scale beside it."""
    # Scales are also FP8 in NVFP4; whoever owns them claims them.
    if payload.dtype not in FP8 or len(payload.shape) not in (2, 3) or payload.name.endswith("_scale"):
        return None
    stem = payload.name.removesuffix("weight")
    names = (payload.name + "_scale_inv", payload.name + "_scale")
    scales = find_scale(payload, tensors, (*names, stem + "scale") if stem != payload.name else names)
    if scales is None:
        what = f"{payload.name} is FP8 and has no scale beside it"
        raise Day0Error(str(payload.file), what, hint="fetch the checkpoint again; its scales may be in a missing file")
    stacked, experts, rows = matrix(payload.shape[:-1])
    block = _block(payload, scales, quantisation)
    if scales.dtype not in _scaled.SCALES or block is None:
        raise refuse_scale(payload, scales, "one scale for the tensor, a row, or a block as weight_block_size says")
    return Weight(
        name=payload.name,
        format=FORMAT,
        parts={"payload": payload, "scales": scales},
        stacked=stacked,
        experts=experts,
        stored_rows=rows,
        columns=payload.shape[-1],
        segments=whole(rows),
        facts={"block": block},
    )


def _block(payload: Stored, scales: Stored, quantisation: Mapping[str, object]) -> tuple[int, int] | None:
    """Return the block that makes the grid of the scales, or None."""
    rows, columns = payload.shape[-2:]
    lead = payload.shape[:-2]
    count = 1
    for size in scales.shape:
        count *= size
    if count == 1 or (lead and count == lead[0] and scales.shape[-1:] == (1,)):
        return rows, columns
    grid = scales.shape[len(lead) :] if scales.shape[: len(lead)] == lead else ()
    if grid in ((rows,), (rows, 1)):
        return 1, columns
    if len(grid) != 2 or 0 in grid:
        return None
    said = quantisation.get("weight_block_size")
    if isinstance(said, (list, tuple)) and len(said) == 2 and all(type(one) is int and one > 0 for one in said):
        wanted = (said[0], said[1])
        if (-(-rows // wanted[0]), -(-columns // wanted[1])) == grid:
            return wanted
    if (-(-rows // USUAL[0]), -(-columns // USUAL[1])) == grid:
        return USUAL
    # Mixed checkpoints: what divides evenly says its own block.
    if rows % grid[0] == 0 and columns % grid[1] == 0:
        return rows // grid[0], columns // grid[1]
    return None


def grid_of(weight: Weight, reader: Reader, expert: int, begin: int, end: int) -> torch.Tensor:
    """Return rows begin to end of the grid of scales of one matrix, in float32."""
    stored = weight.parts["scales"]
    rows, columns = weight.stored_rows, weight.columns
    block = block_of(weight)
    shape = (-(-rows // block[0]), -(-columns // block[1]))
    each = shape[0] * shape[1]
    total = 1
    for size in stored.shape:
        total *= size
    first = expert * each if total > each else 0
    some = reader.piece(stored, first + begin * shape[1], (end - begin, shape[1]), into="scales")
    scales = _scaled.widened(some)
    _scaled.check_finite(stored, scales)
    return scales


def block_of(weight: Weight) -> tuple[int, int]:
    """Return rows and columns that share a scale."""
    block = weight.facts["block"]
    if not isinstance(block, tuple):
        raise TypeError("block")
    return block


def values(
    weight: Weight, reader: Reader, expert: int, first: int, last: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return value times scale, rounded once: in float32 as loaders compute it, in float64 exactly."""
    raw = read_rows(weight, reader, "payload", expert, first, last, weight.columns)
    block = block_of(weight)
    stored = torch.cat([torch.arange(one.count) * one.step + one.first for one in weight.spans(first, last)])
    row = stored // block[0]
    # Only those of the tile: a large matrix with a scale for 32 values has gigabytes of them.
    begin, end = int(row.min()), int(row.max()) + 1
    grid = grid_of(weight, reader, expert, begin, end)
    scale = grid[row - begin].repeat_interleave(block[1], dim=1)[:, : weight.columns]
    return raw.to(dtype).mul_(scale)


def exact_bits(weight: Weight, reader: Reader) -> int | None:
    """Four bits of e4m3 (three of e5m2) times what the scales have."""
    scales = _scaled.bits_of_scales(weight, reader)
    own = 3 if weight.parts["payload"].dtype == "F8_E5M2" else 4
    bits = own + scales if scales > 1 else own
    return bits if bits <= 24 else None


FORMAT = Format(
    name="fp8",
    summary="FP8 with scales for blocks (DeepSeek), rows or the tensor",
    find=find,
    values=values,
    exact_values=partial(values, dtype=torch.float64),
    exact_bits=exact_bits,
)

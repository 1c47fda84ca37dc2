"""What the MX formats share: packed bytes of a row lie together, and so do its scale bytes."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from day0.converters.header import Stored
from day0.converters.reading import Reader
from day0.converters.weight import GROUP, MxTile, Segment, Weight
from day0.errors import Day0Error

__all__ = ["SPLIT", "find_scale", "matrix", "read_mx", "read_rows", "split_to_low_first"]

SPLIT = "split"
BYTES = GROUP // 2


def find_scale(payload: Stored, tensors: Mapping[str, Stored], names: tuple[str, ...]) -> Stored | None:
    """Return the first of these tensors that is there."""
    return next((tensors[name] for name in names if name in tensors), None)


def matrix(shape: tuple[int, ...]) -> tuple[bool, tuple[int, ...], int]:
    """Return of a shape [.., rows]: whether it is a stack, its matrices, and the rows of one."""
    stacked = len(shape) > 1
    count = shape[0] if stacked else 1
    return stacked, tuple(range(count)), shape[-1]


def whole(rows: int) -> tuple[Segment, ...]:
    """Return all rows in their order."""
    return (Segment(first=0, step=1, count=rows),)


def read_rows(
    weight: Weight, reader: Reader, part: str, expert: int, first: int, last: int, width: int
) -> torch.Tensor:
    """Return rows [R, width] of a part that has `width` values in each row of each matrix."""
    stored = weight.parts[part]
    pieces = []
    spans = tuple(weight.spans(first, last))
    for number, one in enumerate(spans):
        count = (one.count - 1) * one.step + 1
        at = (expert * weight.stored_rows + one.first) * width
        rows = reader.piece(stored, at, (count, width), into=f"{part}{number if len(spans) > 1 else ''}")
        pieces.append(rows[:: one.step])
    if len(pieces) == 1:
        return pieces[0] if spans[0].step == 1 else pieces[0].contiguous()
    return torch.cat(pieces)


def read_mx(weight: Weight, reader: Reader, expert: int, first: int, last: int) -> MxTile:
    """Return codes and scale bytes of rows first to last."""
    codes = read_rows(weight, reader, "payload", expert, first, last, weight.columns // 2).view(torch.uint8)
    scales = read_rows(weight, reader, "scales", expert, first, last, weight.columns // GROUP).view(torch.uint8)
    if weight.facts.get("order") == SPLIT:
        codes = split_to_low_first(codes)
    return MxTile(codes_RP=codes, bytes_RG=scales)


def read_scales(weight: Weight, reader: Reader, expert: int, first: int, last: int) -> torch.Tensor:
    """Return the scale bytes alone."""
    return read_rows(weight, reader, "scales", expert, first, last, weight.columns // GROUP).view(torch.uint8)


def split_to_low_first(codes_RP: torch.Tensor) -> torch.Tensor:
    """Bring codes whose low nibbles are the first half of a group into pairs of neighbours."""
    groups = codes_RP.unflatten(-1, (-1, BYTES))
    nibbles = torch.cat((groups & 15, groups >> 4), dim=-1)
    return (nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)).flatten(-2)


def low_first_to_split(codes_RP: torch.Tensor) -> torch.Tensor:
    """Undo `split_to_low_first`."""
    groups = codes_RP.unflatten(-1, (-1, BYTES))
    nibbles = torch.stack((groups & 15, groups >> 4), dim=-1).flatten(-2)
    return (nibbles[..., :BYTES] | (nibbles[..., BYTES:] << 4)).flatten(-2)


def refuse_scale(payload: Stored, scale: Stored, expected: str) -> Day0Error:
    """Say that a scale does not belong to its weight."""
    what = (
        f"{payload.name} {payload.dtype}{list(payload.shape)} and {scale.name} {scale.dtype}{list(scale.shape)} "
        f"do not fit"
    )
    return Day0Error(str(scale.file), what, hint=f"expected {expected}")

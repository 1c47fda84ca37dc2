"""gpt-oss: all experts of a layer in `X_blocks` [E, rows, G, 16] and `X_scales` [E, rows, G]; also `X.blocks`."""

from __future__ import annotations

from collections.abc import Mapping

from day0.converters.formats._mx import BYTES, matrix, read_mx, refuse_scale, whole
from day0.converters.header import Stored
from day0.converters.weight import GROUP, Format, Weight
from day0.errors import Day0Error

__all__ = ["FORMAT"]


def find(payload: Stored, tensors: Mapping[str, Stored], quantisation: Mapping[str, object]) -> Weight | None:
    """Claim `_blocks` of bytes in groups of 16."""
    mark = next((one for one in ("_blocks", ".blocks") if payload.name.endswith(one)), None)
    if mark is None or payload.dtype != "U8":
        return None
    stem = payload.name.removesuffix(mark)
    scales = tensors.get(f"{stem}{mark[0]}scales")
    if len(payload.shape) not in (3, 4) or payload.shape[-1] != BYTES:
        what = f"{payload.name} has shape {list(payload.shape)}, and MXFP4 blocks are [experts, rows, groups, 16]"
        raise Day0Error(str(payload.file), what, hint="fetch the checkpoint again")
    if scales is None:
        raise Day0Error(str(payload.file), f"{payload.name} has no scales beside it", hint="fetch the checkpoint again")
    if scales.dtype not in ("U8", "F8_E8M0") or scales.shape != payload.shape[:-1]:
        raise refuse_scale(payload, scales, f"U8{list(payload.shape[:-1])}")
    stacked, experts, rows = matrix(payload.shape[:-2])
    return Weight(
        name=stem,
        format=FORMAT,
        parts={"payload": payload, "scales": scales},
        stacked=stacked,
        experts=experts,
        stored_rows=rows,
        columns=payload.shape[-2] * GROUP,
        segments=whole(rows),
    )


FORMAT = Format(name="gpt-oss-mxfp4", summary="MXFP4 as gpt-oss stores it: _blocks and _scales", find=find, mx=read_mx)

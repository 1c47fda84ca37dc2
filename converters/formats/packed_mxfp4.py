"""compressed-tensors `mxfp4-pack-quantized`, and K3's experts: `X.weight_packed` [rows, C / 2], `X.weight_scale`."""

from __future__ import annotations

from collections.abc import Mapping

from day0.converters.formats._mx import BYTES, matrix, read_mx, whole
from day0.converters.header import Stored
from day0.converters.weight import GROUP, Format, Weight

__all__ = ["FORMAT"]


def find(payload: Stored, tensors: Mapping[str, Stored], quantisation: Mapping[str, object]) -> Weight | None:
    """Claim `weight_packed` of bytes with one scale byte for 16 of them."""
    if not payload.name.endswith("weight_packed") or payload.dtype != "U8" or len(payload.shape) not in (2, 3):
        return None
    stem = payload.name.removesuffix("_packed")
    scales = tensors.get(stem + "_scale")
    if scales is None or scales.dtype not in ("U8", "F8_E8M0"):
        return None
    *lead, packed = payload.shape
    if scales.shape != (*lead, packed // BYTES) or packed % BYTES:
        return None
    stacked, experts, rows = matrix(tuple(lead))
    return Weight(
        name=stem,
        format=FORMAT,
        parts={"payload": payload, "scales": scales},
        stacked=stacked,
        experts=experts,
        stored_rows=rows,
        columns=packed // BYTES * GROUP,
        segments=whole(rows),
    )


FORMAT = Format(
    name="packed-mxfp4",
    summary="MXFP4 of compressed-tensors and Kimi K3: weight_packed and weight_scale",
    find=find,
    mx=read_mx,
)

"""DeepSeek-V4: two codes in an I8 `X.weight` [rows, C / 2], and F8_E8M0 scales [rows, C / 32] in `X.scale`.

transformers stacks the same as `X` [E, rows, C / 2] with `X_scale_inv`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from day0.converters.formats._mx import BYTES, find_scale, matrix, read_mx, whole
from day0.converters.header import Stored
from day0.converters.weight import GROUP, Format, Weight

__all__ = ["FORMAT"]


def find(payload: Stored, tensors: Mapping[str, Stored], quantisation: Mapping[str, object]) -> Weight | None:
    """Claim I8 (or F4) with one power of two for 32 values."""
    if payload.dtype not in ("I8", "U8", "F4") or len(payload.shape) not in (2, 3):
        return None
    stem = payload.name.removesuffix("weight")
    names = (stem + "scale",) if stem != payload.name else ()
    scales = find_scale(payload, tensors, (*names, payload.name + "_scale_inv", payload.name + "_scale"))
    # Bytes without a name of their own could be anything: only a scale dtype that means a power of two will do.
    if scales is None or scales.dtype not in (("F8_E8M0", "U8") if payload.dtype != "U8" else ("F8_E8M0",)):
        return None
    *lead, width = payload.shape
    packed = width // 2 if payload.dtype == "F4" else width
    if packed % BYTES or scales.shape != (*lead, packed // BYTES):
        return None
    stacked, experts, rows = matrix(tuple(lead))
    return Weight(
        name=payload.name,
        format=FORMAT,
        # F4 counts codes, the others count bytes.
        parts={"payload": replace(payload, dtype="U8", shape=(*lead, packed)), "scales": scales},
        stacked=stacked,
        experts=experts,
        stored_rows=rows,
        columns=packed // BYTES * GROUP,
        segments=whole(rows),
    )


FORMAT = Format(
    name="deepseek-v4-fp4", summary="FP4 of DeepSeek-V4: I8 pairs of codes with F8_E8M0 scales", find=find, mx=read_mx
)

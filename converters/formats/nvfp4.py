"""NVFP4: four-bit codes, an e4m3 scale for 16 values, and one float32 for the tensor.

compressed-tensors (`weight_packed`, `weight_global_scale`) divides by that float32; ModelOpt (`weight`,
`weight_scale_2`) multiplies by it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from day0.converters.formats import _scaled
from day0.converters.formats._mx import matrix, read_rows, whole
from day0.converters.header import Stored
from day0.converters.reading import Reader
from day0.converters.weight import Format, Weight
from day0.errors import Day0Error
from day0.reference_ops.mxfp4_decode import E2M1_VALUES

__all__ = ["FORMAT"]

GROUP = 16


def find(payload: Stored, tensors: Mapping[str, Stored], quantisation: Mapping[str, object]) -> Weight | None:
    """Claim bytes with an F8_E4M3 scale for eight of them and a scale for all."""
    if payload.dtype != "U8" or len(payload.shape) not in (2, 3):
        return None
    if payload.name.endswith("weight_packed"):
        stem, overall, divides = payload.name.removesuffix("_packed"), "_global_scale", True
    else:
        stem, overall, divides = payload.name, "_scale_2", False
    scales, total = tensors.get(stem + "_scale"), tensors.get(stem + overall)
    *lead, packed = payload.shape
    if scales is None or scales.dtype != "F8_E4M3" or scales.shape != (*lead, packed * 2 // GROUP) or packed % 8:
        return None
    if total is None or total.dtype != "F32" or total.nbytes not in (4, 4 * (lead[0] if len(lead) > 1 else 1)):
        what = f"{payload.name} is NVFP4 and has no {stem.rpartition('.')[2]}{overall} beside it"
        raise Day0Error(str(payload.file), what, hint="fetch the checkpoint again")
    stacked, experts, rows = matrix(tuple(lead))
    return Weight(
        name=stem,
        format=FORMAT,
        parts={"payload": payload, "scales": scales, "overall": total},
        stacked=stacked,
        experts=experts,
        stored_rows=rows,
        columns=packed * 2,
        segments=whole(rows),
        facts={"divides": divides},
    )


def _overall(weight: Weight, reader: Reader, expert: int) -> torch.Tensor:
    scales = _scaled.read_scale(weight, reader, "overall").reshape(-1)
    _scaled.check_finite(weight.parts["overall"], scales)
    one = scales[expert if scales.numel() > 1 else 0]
    return one.reciprocal() if weight.facts["divides"] else one


def values(weight: Weight, reader: Reader, expert: int, first: int, last: int) -> torch.Tensor:
    """Return code * (scale * overall scale), each product rounded to float32, as the loaders compute it."""
    codes = read_rows(weight, reader, "payload", expert, first, last, weight.columns // 2)
    scales = read_rows(weight, reader, "scales", expert, first, last, weight.columns // GROUP).to(torch.float32)
    _scaled.check_finite(weight.parts["scales"], scales.abs())
    if weight.facts["divides"]:
        total = _scaled.read_scale(weight, reader, "overall").reshape(-1)
        scales = scales / total[expert if total.numel() > 1 else 0]
    else:
        scales = scales * _overall(weight, reader, expert)
    table = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)])
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2).to(torch.int32)
    values_RC: torch.Tensor = table[nibbles].unflatten(-1, (-1, GROUP)).mul_(scales.unsqueeze(-1)).flatten(-2)
    return values_RC


def exact_bits(weight: Weight, reader: Reader) -> int | None:
    """Two bits of the code, four of its scale, and what the overall scale has."""
    total = _scaled.read_scale(weight, reader, "overall")
    bits = _scaled.significant_bits(total)
    if weight.facts["divides"]:
        return 6 if bits == 1 else None
    return 6 + (bits if bits > 1 else 0) if bits <= 18 else None


FORMAT = Format(
    name="nvfp4",
    summary="NVFP4 of compressed-tensors and ModelOpt: codes, e4m3 scales for 16 values, one float32",
    find=find,
    values=values,
    exact_bits=exact_bits,
)

"""INT4 of compressed-tensors (`pack-quantized`) and Kimi K2.5: eight codes n + 8 in an I32, w = (n - 8) * scale."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from day0.converters.formats import _scaled
from day0.converters.formats._mx import matrix, read_rows, whole
from day0.converters.header import Stored
from day0.converters.reading import Reader
from day0.converters.weight import Format, Weight
from day0.errors import Day0Error

__all__ = ["FORMAT"]

IN_A_WORD = 8


def find(payload: Stored, tensors: Mapping[str, Stored], quantisation: Mapping[str, object]) -> Weight | None:
    """Claim `weight_packed` of I32; stacks have no `weight` in their names."""
    if not payload.name.endswith("_packed") or payload.dtype != "I32" or len(payload.shape) not in (2, 3):
        return None
    stem = payload.name.removesuffix("_packed")
    if stem + "_zero_point" in tensors:
        what = f"{payload.name} has zero points, and day0 reads symmetric codes only"
        raise Day0Error(str(payload.file), what, hint="decode it with the tool that made it, and convert that")
    if stem + "_g_idx" in tensors:
        what = (
            f"{payload.name} has columns in another order ({stem.rpartition('.')[2]}_g_idx), which day0 does not undo"
        )
        raise Day0Error(str(payload.file), what, hint="decode it with the tool that made it, and convert that")
    scales = tensors.get(stem + "_scale")
    if scales is None or scales.dtype not in ("BF16", "F16", "F32"):
        raise Day0Error(str(payload.file), f"{payload.name} has no scales beside it", hint="fetch it again")
    stacked, experts, rows = matrix(payload.shape[:-1])
    columns, group = _columns(payload, scales, quantisation)
    parts = {"payload": payload, "scales": scales}
    if stem + "_shape" in tensors:
        parts["shape"] = tensors[stem + "_shape"]
    return Weight(
        name=stem,
        format=FORMAT,
        parts=parts,
        stacked=stacked,
        experts=experts,
        stored_rows=rows,
        columns=columns,
        segments=whole(rows),
        facts={"group": group},
    )


def _columns(payload: Stored, scales: Stored, quantisation: Mapping[str, object]) -> tuple[int, int]:
    """Return columns and group: the words hold up to seven codes of nobody at the end of a row."""
    room = payload.shape[-1] * IN_A_WORD
    groups = scales.shape[-1] if scales.shape[:-1] == payload.shape[:-1] else 0
    group = _group(quantisation)
    if groups == 1:
        return room, room
    for one in (group, 32, 64, 128, 16, 256):
        if groups and one and room - IN_A_WORD < groups * one <= room + one - 1 and -(-room // one) == groups:
            return min(room, groups * one), one
    what = f"{payload.name} {payload.dtype}{list(payload.shape)} and {scales.name} {list(scales.shape)} do not fit"
    raise Day0Error(str(scales.file), what, hint="expected one scale for 32, 64 or 128 values of a row")


def _group(quantisation: Mapping[str, object]) -> int | None:
    """Return the group size that the config names, where it names one only."""
    found = quantisation.get("config_groups")
    groups = found.values() if isinstance(found, Mapping) else ()
    weights = [one["weights"] for one in groups if isinstance(one, Mapping) and isinstance(one.get("weights"), Mapping)]
    for one in weights:
        if one.get("num_bits", 4) != 4:
            what = f"weights of {str(one['num_bits'])[:20]} bits are packed, and day0 reads 4"
            hint = "decode it with the tool that made it, and convert that"
            raise Day0Error("config.json", what, hint=hint)
    if weights and all(one.get("symmetric") is False for one in weights):
        what = "weights of 4 bits are said to be not symmetric, and have no zero points"
        raise Day0Error("config.json", what, hint="fetch the checkpoint again, with all of its tensors")
    sizes = {size for one in weights if type(size := one.get("group_size")) is int and size > 0}
    return sizes.pop() if len(sizes) == 1 else None


def values(weight: Weight, reader: Reader, expert: int, first: int, last: int) -> torch.Tensor:
    """Return (n - 8) * scale, exact in float32 for scales of 16 bits."""
    words = read_rows(weight, reader, "payload", expert, first, last, weight.parts["payload"].shape[-1])
    groups = weight.parts["scales"].shape[-1]
    scales = read_rows(weight, reader, "scales", expert, first, last, groups).to(torch.float32)
    _scaled.check_finite(weight.parts["scales"], scales.abs())
    packed = words.view(torch.uint8)
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)[:, : weight.columns]
    group = weight.facts["group"]
    scale = scales.repeat_interleave(int(str(group)), dim=-1)[:, : weight.columns]
    return (codes.to(torch.float32) - 8.0).mul_(scale)


def exact_bits(weight: Weight, reader: Reader) -> int | None:
    """Three bits of the code (7 is the longest), and what the scales have.

    Raises Day0Error where the stored shape is another than the words and scales make.
    """
    if "shape" in weight.parts:
        stored = weight.parts["shape"]
        said = reader.whole(stored, into="shape").reshape(-1).tolist()
        if said[-2:] != [weight.stored_rows, weight.columns]:
            what = f"{stored.name} says {said}, and words and scales make {[weight.stored_rows, weight.columns]}"
            raise Day0Error(str(stored.file), what, hint="the group size may be another than config.json says")
    bits = _scaled.bits_of_scales(weight, reader)
    return 3 + (bits if bits > 1 else 0) if bits <= 21 else None


FORMAT = Format(
    name="int4",
    summary="INT4 of compressed-tensors and Kimi K2.5: eight codes in an I32, one scale for 32 or more values",
    find=find,
    values=values,
    exact_bits=exact_bits,
)

"""MXFP4 in another order of nibbles: the same codes and scales, byte for byte after going there and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from day0.converters.formats._mx import BYTES, SPLIT, low_first_to_split
from day0.converters.targets._config import packed_config, scheme
from day0.converters.targets._target import Job, Made, Target
from day0.converters.verdict import Verdict
from day0.converters.weight import GROUP, MxTile, Weight
from day0.converters.writer import Output
from day0.records.convert import ConversionParameters

__all__ = ["TARGET"]


def outputs(weight: Weight, parameters: ConversionParameters) -> Mapping[str, Output]:
    """`_blocks` and `_scales` for stacks, as gpt-oss has them; `_packed` and `_scale` for single matrices."""
    groups = weight.columns // GROUP
    if weight.stacked:
        lead = (len(weight.experts), weight.rows, groups)
        return {
            "weight": Output(name=weight.name + "_blocks", dtype="U8", shape=(*lead, BYTES)),
            "scale": Output(name=weight.name + "_scales", dtype="U8", shape=lead),
        }
    return {
        "weight": Output(name=weight.name + "_packed", dtype="U8", shape=(weight.rows, weight.columns // 2)),
        "scale": Output(name=weight.name + "_scale", dtype="U8", shape=(weight.rows, groups)),
    }


def tile(job: Job, source: MxTile | torch.Tensor) -> Made:
    """Move nibbles."""
    if not isinstance(source, MxTile):
        raise TypeError("mxfp4 takes four-bit codes")
    codes = low_first_to_split(source.codes_RP) if job.parameters.order == SPLIT else source.codes_RP
    return Made(tensors={"weight": codes, "scale": source.bytes_RG}, verdict=Verdict())


def scan_tile(job: Job, bytes_RG: torch.Tensor, codes: Callable[[], torch.Tensor]) -> Verdict:
    """Nothing changes."""
    return Verdict()


def _entry(parameters: ConversionParameters) -> dict[str, Any]:
    group = scheme(num_bits=4, type="float", strategy="group", group_size=GROUP, scale_dtype="torch.uint8")
    entry = packed_config("mxfp4-pack-quantized", group)
    return {**entry, "nibble_order": parameters.order} if parameters.order == SPLIT else entry


TARGET = Target(
    name="mxfp4",
    summary="MXFP4 with its codes in another order, or under other names",
    from_mx="always exact: the same codes and scales",
    from_values="not offered: use a quantiser",
    outputs=outputs,
    tile=tile,
    scan_tile=scan_tile,
    bits=2,
    quantisation=_entry,
    mx_only=True,
)

"""INT4 with one bfloat16 for 128 values of a row, packed as compressed-tensors packs it: for parts without MX or FP8.

Shape suffixes: R rows, C columns, N groups of 128.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from day0.converters.tables import FP32, wide_table
from day0.converters.targets._config import packed_config, scheme
from day0.converters.targets._lookup import look_up
from day0.converters.targets._nan import nan_verdict, value_nans
from day0.converters.targets._target import Job, Made, Target
from day0.converters.verdict import Verdict, worst
from day0.converters.weight import MxTile, Weight
from day0.converters.writer import Output
from day0.errors import Day0Error
from day0.records.convert import ConversionParameters

__all__ = ["TARGET"]

GROUP = 128
LARGEST = 7
IN_A_WORD = 8
BOUND = "1/13.8 of the largest magnitude of its group"


def outputs(weight: Weight, parameters: ConversionParameters) -> Mapping[str, Output]:
    """Words of eight codes, scales, and the shape."""
    if weight.columns % GROUP:
        what = f"{weight.name} has {weight.columns} columns, no multiple of {GROUP}"
        raise Day0Error("--to int4-g128", what, hint="leave it out with --skip, or convert to bf16")
    lead = (len(weight.experts),) if weight.stacked else ()
    return {
        "weight": Output(
            name=weight.name + "_packed", dtype="I32", shape=(*lead, weight.rows, weight.columns // IN_A_WORD)
        ),
        "scale": Output(name=weight.name + "_scale", dtype="BF16", shape=(*lead, weight.rows, weight.columns // GROUP)),
        "shape": Output(name=weight.name + "_shape", dtype="I64", shape=(2,)),
    }


def tile(job: Job, source: MxTile | torch.Tensor) -> Made:
    """Round every value to the nearest of fifteen steps, seven to either side of zero."""
    if isinstance(source, MxTile):
        found = nan_verdict(job, source.bytes_RG)
        values_RC = look_up(job, source.codes_RP, source.bytes_RG, wide_table(FP32)).view(torch.float32)
    else:
        found, values_RC = value_nans(job, source), source
    groups = values_RC.unflatten(1, (-1, GROUP))
    scale_RN = _rounded_up(torch.nan_to_num(groups).abs().amax(dim=-1) / LARGEST)
    wide = scale_RN.to(torch.float32).unsqueeze(-1)
    code = (
        torch.where(wide > 0, torch.nan_to_num(groups) / wide.clamp(min=1e-45), 0.0).round_().clamp_(-LARGEST, LARGEST)
    )
    differ = (code * wide != groups) & ~groups.isnan()
    verdict = Verdict(changed=int(differ.sum()), bound=BOUND if bool(differ.any()) else "")
    shape = torch.tensor([job.weight.rows, job.weight.columns])
    first = job.first == 0 and job.expert == job.weight.experts[0]
    return Made(
        tensors={"weight": _packed(code), "scale": scale_RN, "shape": shape if first else shape[:0]},
        verdict=worst(found, verdict),
    )


def _rounded_up(scale: torch.Tensor) -> torch.Tensor:
    """Return bfloat16, never smaller: the largest value of a group must not need an eighth step."""
    rounded = scale.to(torch.bfloat16)
    short = rounded.to(torch.float32) < scale
    return (rounded.view(torch.int16) + short.to(torch.int16)).view(torch.bfloat16)


def _packed(code: torch.Tensor) -> torch.Tensor:
    nibbles = (code.flatten(1).to(torch.int16) + 8).to(torch.uint8)
    return (nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)).contiguous().view(torch.int32)


def _entry(parameters: ConversionParameters) -> dict[str, Any]:
    group = scheme(num_bits=4, type="int", strategy="group", group_size=GROUP)
    return packed_config("pack-quantized", group)


TARGET = Target(
    name="int4-g128",
    summary="INT4 with one BF16 scale for 128 values, packed as compressed-tensors does",
    from_mx=f"bounded: {BOUND}; never exact in general, its steps are uniform",
    from_values=f"bounded: {BOUND}",
    outputs=outputs,
    tile=tile,
    bits=0,
    bound=BOUND,
    quantisation=_entry,
)

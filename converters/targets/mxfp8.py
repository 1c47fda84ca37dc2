"""MXFP8: FP8 values with one power of two for 32 of them. Four-bit codes keep the scales that they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from day0.converters.tables import E4M3, LOWEST, fp8_table
from day0.converters.targets._config import block_config
from day0.converters.targets._fp8 import fp8_target
from day0.converters.targets._lookup import look_up
from day0.converters.targets._nan import nan_verdict
from day0.converters.targets._target import Job, Made, Target
from day0.converters.verdict import Verdict
from day0.converters.weight import GROUP, MxTile, Weight
from day0.converters.writer import Output
from day0.records.convert import ConversionParameters

__all__ = ["TARGET"]


def _entry(parameters: ConversionParameters) -> dict[str, Any]:
    return block_config(1, GROUP)(_plain(parameters))


_FP8 = fp8_target("mxfp8", "", rows=1, columns=GROUP, suffix="_scale_inv", finer=(), quantisation=_entry)


def _plain(parameters: ConversionParameters) -> ConversionParameters:
    """MXFP8 is e4m3fn with E8M0 scales, whatever else was asked for."""
    return parameters.model_copy(update={"scales": "e8m0", "fnuz": False})


def outputs(weight: Weight, parameters: ConversionParameters) -> Mapping[str, Output]:
    """Values and scales."""
    return _FP8.outputs(weight, _plain(parameters))


def tile(job: Job, source: MxTile | torch.Tensor) -> Made:
    """Codes become bytes of the same value, and scales stay; other values are rounded."""
    if not isinstance(source, MxTile):
        return _FP8.tile(_replaced(job), source)
    rows = torch.full_like(source.bytes_RG, -LOWEST)
    words = look_up(job, source.codes_RP, rows, fp8_table(E4M3))
    return Made(
        tensors={"weight": words.view(torch.uint8), "scale": source.bytes_RG}, verdict=nan_verdict(job, source.bytes_RG)
    )


def _replaced(job: Job) -> Job:
    return replace(job, parameters=_plain(job.parameters))


def scan_tile(job: Job, bytes_RG: torch.Tensor, codes: Callable[[], torch.Tensor]) -> Verdict:
    """Exact, whatever the scales."""
    return nan_verdict(job, bytes_RG)


def keeps(weight: Weight, parameters: ConversionParameters) -> bool:
    """Say whether it is MXFP8 already."""
    if _FP8.keeps is None:
        return False
    return _FP8.keeps(weight, _plain(parameters))


TARGET = Target(
    name="mxfp8",
    summary="MXFP8: FP8 with one E8M0 scale for 32 values",
    from_mx="always exact: the scales stay as they are",
    from_values=_FP8.from_values,
    outputs=outputs,
    tile=tile,
    scan_tile=scan_tile,
    bits=_FP8.bits,
    bound=_FP8.bound,
    keeps=keeps,
    quantisation=_entry,
)

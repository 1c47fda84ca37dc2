"""Floats of 16 and 32 bits, without scales.

Shape suffixes: R rows, C columns, G groups of 32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from day0.converters.header import TORCH
from day0.converters.tables import FloatLayout, Table, wide_table
from day0.converters.targets._lookup import count_codes, look_up
from day0.converters.targets._nan import nan_verdict, value_nans
from day0.converters.targets._target import Job, Made, Target
from day0.converters.verdict import Verdict, worst
from day0.converters.weight import MxTile, Weight
from day0.converters.writer import Output
from day0.records.convert import ConversionParameters

__all__ = ["wide_target"]


def wide_target(layout: FloatLayout, summary: str, *, from_mx: str) -> Target:
    """Make the target of one float."""
    dtype = TORCH[layout.dtype]
    bits = layout.mantissa + 1
    bound = f"2^-{bits} of the float32 product, or half the smallest subnormal where that is more; the largest value beyond it"

    def outputs(weight: Weight, parameters: ConversionParameters) -> Mapping[str, Output]:
        return {"weight": Output(name=weight.name, dtype=layout.dtype, shape=weight.shape)}

    def judged(job: Job, bytes_RG: torch.Tensor, codes: Callable[[], torch.Tensor]) -> Verdict:
        table = _table(layout, job)
        verdict = nan_verdict(job, bytes_RG)
        risky = ~(table.exact & ~table.subnormal).all(dim=1)
        where = risky[bytes_RG.to(torch.int32)]
        if not bool(where.any()):
            return verdict
        found = count_codes(codes(), bytes_RG, where, table)
        return worst(
            verdict, Verdict(changed=found.changed, subnormal=found.subnormal, bound=bound if found.changed else "")
        )

    def tile(job: Job, source: MxTile | torch.Tensor) -> Made:
        if isinstance(source, MxTile):
            codes = source.codes_RP
            words = look_up(job, codes, source.bytes_RG, _table(layout, job))
            return Made(tensors={"weight": words.view(dtype)}, verdict=judged(job, source.bytes_RG, lambda: codes))
        return _from_values(job, source, layout, bound)

    return Target(
        name=layout.name,
        summary=summary,
        from_mx=from_mx,
        from_values=f"exact where {bits} significant bits hold the product; else bounded: {bound}",
        outputs=outputs,
        tile=tile,
        scan_tile=judged,
        bits=bits,
        bound=bound,
        transposes=True,
    )


def _table(layout: FloatLayout, job: Job) -> Table:
    return wide_table(layout, flush=job.parameters.no_subnormal and job.parameters.allow_bounded)


def _from_values(job: Job, values_RC: torch.Tensor, layout: FloatLayout, bound: str) -> Made:
    found = value_nans(job, values_RC)
    dtype = TORCH[layout.dtype]
    info = torch.finfo(dtype)
    # Saturated: an infinity in a weight is silent until it is a NaN in the logits.
    stored = values_RC.clamp(-info.max, info.max).to(dtype)
    if job.parameters.no_subnormal and job.parameters.allow_bounded:
        stored = torch.where(stored.abs() < info.tiny, 0.0, stored)
    again = stored.to(torch.float32)
    differ = (again != values_RC) & ~values_RC.isnan()
    low = ((again.abs() < info.tiny) & (again != 0)).sum()
    verdict = Verdict(changed=int(differ.sum()), subnormal=int(low), bound=bound if bool(differ.any()) else "")
    return Made(tensors={"weight": stored}, verdict=worst(found, verdict))

"""Scale byte 255 is NaN: refused by name, or kept in exactly its 32 values."""

from __future__ import annotations

import torch

from day0.converters.blocks import NAN_BYTE
from day0.converters.targets._target import Job
from day0.converters.verdict import Verdict
from day0.converters.weight import GROUP

__all__ = ["has_nan", "nan_verdict", "value_nans"]


def has_nan(bytes_RG: torch.Tensor) -> bool:
    """Say whether a scale byte is NaN; the largest one tells, several times sooner than a comparison of each."""
    return bytes_RG.numel() > 0 and int(bytes_RG.max()) == NAN_BYTE


def nan_verdict(job: Job, bytes_RG: torch.Tensor) -> Verdict:
    """Count the NaN scales of a tile; a refusal unless --keep-nan."""
    if not has_nan(bytes_RG):
        return Verdict()
    nan = bytes_RG == NAN_BYTE
    count = int(nan.sum())
    if job.parameters.keep_nan:
        return Verdict(nan=count * GROUP)
    row, group = (int(one) for one in nan.nonzero()[0])
    return Verdict(refusal=f"scale byte 255 (NaN) in {_place(job, row)}, group {group}; --keep-nan keeps it")


def value_nans(job: Job, values_RC: torch.Tensor) -> Verdict:
    """The same for values that are NaN or infinite already."""
    bad = ~torch.isfinite(values_RC)
    if not bool(bad.any()):
        return Verdict()
    row, column = (int(one) for one in bad.nonzero()[0])
    if bool(torch.isinf(values_RC).any()):
        return Verdict(refusal=f"an infinite value in {_place(job, row)}, column {column}")
    if job.parameters.keep_nan:
        return Verdict(nan=int(bad.sum()))
    return Verdict(refusal=f"a NaN in {_place(job, row)}, column {column}; --keep-nan keeps it")


def _place(job: Job, row: int) -> str:
    expert = f"expert {job.expert}, " if job.weight.stacked else ""
    return f"{expert}row {job.first + row}"

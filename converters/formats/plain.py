"""Weights that are floats of 16 or 32 bits as they are."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from day0.converters.formats._mx import matrix, read_rows, whole
from day0.converters.header import Stored
from day0.converters.reading import Reader
from day0.converters.weight import Format, Weight

__all__ = ["FORMAT", "FORMATS_OF_DTYPE"]

FORMATS_OF_DTYPE = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
_BITS = {"BF16": 8, "F16": 11, "F32": 24}


def find(payload: Stored, tensors: Mapping[str, Stored], quantisation: Mapping[str, object]) -> Weight | None:
    """Claim float matrices; which of them are to be converted is for the architecture to say."""
    if payload.dtype not in FORMATS_OF_DTYPE or len(payload.shape) not in (2, 3):
        return None
    stacked, experts, rows = matrix(payload.shape[:-1])
    return Weight(
        name=payload.name,
        format=FORMAT,
        parts={"payload": payload},
        stacked=stacked,
        experts=experts,
        stored_rows=rows,
        columns=payload.shape[-1],
        segments=whole(rows),
    )


def values(weight: Weight, reader: Reader, expert: int, first: int, last: int) -> torch.Tensor:
    """Return them as float32, which holds them all."""
    return read_rows(weight, reader, "payload", expert, first, last, weight.columns).to(torch.float32)


def exact_bits(weight: Weight, reader: Reader) -> int | None:
    """What the dtype has."""
    return _BITS[weight.parts["payload"].dtype]


FORMAT = Format(
    name="plain", summary="BF16, FP16 and FP32 as they are", find=find, values=values, exact_bits=exact_bits
)

"""How exactly a weight would convert, found without converting it where that can be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from day0.converters.formats._mx import read_mx, read_scales
from day0.converters.reading import Reader
from day0.converters.targets._target import ROWS, Job, Target
from day0.converters.tiers import eager
from day0.converters.verdict import Verdict, worst
from day0.converters.weight import Weight
from day0.records.convert import ConversionParameters

__all__ = ["scan", "tile_rows", "tiles"]

TILE_BYTES = 2 << 20
"""Of packed codes; of float32 values eight times as many."""


def tile_rows(weight: Weight) -> int:
    """Return how many rows are converted at one time: a multiple of 128 that keeps buffers small."""
    row = weight.columns // 2 if weight.format.mx is not None else weight.columns // 2 + 1
    return max(ROWS, TILE_BYTES // max(1, row) // ROWS * ROWS)


def tiles(weight: Weight, rows: int) -> Iterator[tuple[int, int]]:
    """Return first and last row of each tile of a matrix."""
    for first in range(0, weight.rows, rows):
        yield first, min(first + rows, weight.rows)


def scan(weight: Weight, target: Target, parameters: ConversionParameters) -> Verdict:
    """Return the verdict. Four-bit codes are judged by their scales; other values are read where that can help."""
    if target.keeps is not None and target.keeps(weight, parameters):
        return Verdict()
    reader = Reader()
    try:
        if weight.format.mx is not None:
            return _scan_mx(weight, target, parameters, reader)
        needed = weight.format.exact_bits(weight, reader) if weight.format.exact_bits is not None else None
        if needed is None or needed > target.bits:
            return Verdict(changed=None, subnormal=None, bound=target.bound)
        return _scan_values(weight, target, parameters, reader)
    finally:
        reader.close()


def _scan_mx(weight: Weight, target: Target, parameters: ConversionParameters, reader: Reader) -> Verdict:
    if target.scan_tile is None:
        return Verdict(changed=None, subnormal=None, bound=target.bound)
    found = Verdict()
    for expert in weight.experts:
        job = _job(weight, expert, target, parameters, reader)
        for first, last in tiles(weight, 8 * tile_rows(weight)):

            def codes(expert: int = expert, first: int = first, last: int = last) -> torch.Tensor:
                return read_mx(weight, reader, expert, first, last).codes_RP

            scales = read_scales(weight, reader, expert, first, last)
            found = worst(found, target.scan_tile(_at(job, first), scales, codes))
            if found.refusal:
                return found
    return found


def _scan_values(weight: Weight, target: Target, parameters: ConversionParameters, reader: Reader) -> Verdict:
    found = Verdict()
    if weight.format.values is None:
        return found
    for expert in weight.experts:
        job = _job(weight, expert, target, parameters, reader)
        for first, last in tiles(weight, tile_rows(weight)):
            values = weight.format.values(weight, reader, expert, first, last)
            found = worst(found, target.tile(_at(job, first), values).verdict)
            if found.refusal:
                return found
    return found


def _job(weight: Weight, expert: int, target: Target, parameters: ConversionParameters, reader: Reader) -> Job:
    job = Job(weight=weight, expert=expert, parameters=parameters, decode=eager.decode, buffers=reader.buffers)
    prepared = target.prepare(job, reader) if target.prepare is not None else None
    return replace(job, prepared=prepared)


def _at(job: Job, first: int) -> Job:
    return replace(job, first=first)

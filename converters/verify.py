"""Read a result again and compare it with its source, value by value, by code that did not write it.

Four-bit codes are decoded by the reference of `day0::mxfp4_decode` in float64; the result by the readers of its format.

Shape suffixes: R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from day0.converters.find import find_weights
from day0.converters.folder import Folder, open_folder
from day0.converters.plan import Item, Plan
from day0.converters.reading import Reader
from day0.converters.scan import tile_rows, tiles
from day0.converters.shard import COPY_BYTES
from day0.converters.weight import Weight
from day0.errors import Day0Error
from day0.records.convert import ConvertReport
from day0.reference_ops import mxfp4_decode

__all__ = ["Checked", "verify"]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """What a comparison found."""

    weights: int
    values: int
    tensors: int
    """Copied ones, compared by their bytes."""
    wrong: tuple[str, ...]
    """What is not as the report says; empty where all is well."""


def verify(
    plan: Plan, target: Path, report: ConvertReport, *, jobs: int = 1, progress: Progress = lambda *_: None
) -> Checked:
    """Compare all of it: what is exact has to be equal, what is bounded to differ in as many values as reported.

    Raises Day0Error where the result cannot be read as a checkpoint.
    """
    folder = open_folder(target)
    parameters = plan.parameters.model_copy(update={"nibbles": plan.parameters.order, "keep_unknown": True})
    made = {one.name: one for one in find_weights(folder, plan.architecture, parameters).weights}
    counts = {one.name: one.changed for one in report.weights}
    items = plan.items()
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        wrong: list[str] = []
        for number, found in enumerate(pool.map(lambda one: _compare(one, folder, made, counts), items)):
            wrong += found
            progress("comparing", number + 1, len(items))
    converted = [one.weight for one in items if one.target is not None and one.weight is not None]
    return Checked(
        weights=len(converted),
        values=sum(one.values for one in converted),
        tensors=len(items) - len(converted),
        wrong=tuple(wrong),
    )


def _compare(item: Item, folder: Folder, made: dict[str, Weight], counts: dict[str, int | None]) -> list[str]:
    reader, other = Reader(), Reader()
    try:
        if item.target is None or item.weight is None:
            return _compare_bytes(item, folder, reader, other)
        result = made.get(item.weight.name)
        if result is None:
            return [f"{item.weight.name}: it is not in the result"]
        differ = _differ(item, result, reader, other)
        expected = counts.get(item.weight.name)
        if differ != (expected or 0):
            return [f"{item.weight.name}: {differ:,} values differ, and the report says {expected or 0:,}"]
        return []
    except Day0Error as error:
        return [str(error)]
    finally:
        reader.close()
        other.close()


def _compare_bytes(item: Item, folder: Folder, reader: Reader, other: Reader) -> list[str]:
    output = item.outputs["payload"]
    found = folder.tensors.get(output.name)
    if found is None or (found.dtype, found.shape) != (output.dtype, output.shape):
        return [f"{output.name}: it is not in the result as it was"]
    if item.kept is None:
        return []  # rows of a bias in another order; the shapes are all that can be compared by bytes
    for begin in range(0, found.nbytes, COPY_BYTES):
        size = min(COPY_BYTES, found.nbytes - begin)
        if not torch.equal(reader.raw(item.kept, begin, size, into="one"), other.raw(found, begin, size, into="other")):
            return [f"{output.name}: its bytes differ"]
    return []


def _differ(item: Item, result: Weight, reader: Reader, other: Reader) -> int:
    weight = item.weight
    if weight is None:
        return 0
    differ = 0
    # Four-bit codes reach further than float32 does; other values were decoded in it, as loaders do.
    exact = weight.format.mx is not None
    for number, expert in enumerate(weight.experts):
        theirs = result.experts[number]
        turned = values64(result, other, theirs, 0, result.rows, exact=exact).t() if item.transposed else None
        for first, last in tiles(weight, tile_rows(weight)):
            ours_RC = values64(weight, reader, expert, first, last)
            made_RC = (
                values64(result, other, theirs, first, last, exact=exact) if turned is None else turned[first:last]
            )
            same = (ours_RC == made_RC) | (ours_RC.isnan() & made_RC.isnan())
            differ += int((~same).sum())
    return differ


def values64(
    weight: Weight, reader: Reader, expert: int, first: int, last: int, *, exact: bool = False
) -> torch.Tensor:
    """Return rows of a weight in float64: as loaders compute them in float32, or exactly."""
    if weight.format.mx is not None:
        tile = weight.format.mx(weight, reader, expert, first, last)
        return mxfp4_decode.reference(tile.codes_RP, tile.bytes_RG, torch.float64)
    read = weight.format.exact_values if exact and weight.format.exact_values is not None else weight.format.values
    if read is None:
        raise TypeError(weight.format.name)
    return read(weight, reader, expert, first, last).to(torch.float64)

"""One file of the result: every item a tile at a time, into buffers that are used again.

Shape suffixes: E experts, R rows, C columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from day0.converters.formats._mx import read_rows
from day0.converters.formats._scaled import widened
from day0.converters.header import BITS
from day0.converters.plan import Item
from day0.converters.reading import Buffers, Reader
from day0.converters.scan import tile_rows, tiles
from day0.converters.targets._target import Job, Target
from day0.converters.tiers._tier import Decode
from day0.converters.verdict import REPAIR, Verdict, worst
from day0.converters.weight import Weight
from day0.converters.writer import Output, ShardWriter
from day0.errors import Day0Error
from day0.records.convert import ConversionParameters

__all__ = ["METADATA", "Stopped", "write_shard"]

METADATA = {"format": "pt"}
COPY_BYTES = 4 << 20


class Stopped(Exception):
    """Another worker has failed: nothing more is to be written."""


@dataclass(frozen=True, kw_only=True)
class _Work:
    writer: ShardWriter
    reader: Reader
    parameters: ConversionParameters
    decode: Decode
    step: Callable[[int], None]
    """Told how many source bytes are done; raises `Stopped`."""


def write_shard(
    path: Path,
    items: tuple[Item, ...],
    parameters: ConversionParameters,
    decode: Decode,
    step: Callable[[int], None],
) -> dict[str, Verdict]:
    """Write one file under its final name, or not at all. Returns what became of its weights, by name.

    Raises Day0Error: a source that changed or cannot be read, a value that no target takes, no space left.
    """
    outputs = [output for item in items for output in item.outputs.values()]
    reader = Reader()
    writer = _opened(path, outputs)
    try:
        work = _Work(writer=writer, reader=reader, parameters=parameters, decode=decode, step=step)
        verdicts = {}
        for item in items:
            verdict = _write(item, work)
            if item.target is not None and item.weight is not None:
                verdicts[item.weight.name] = verdict
        writer.finish()
    except OSError as error:
        raise _cannot(path, error) from None
    finally:
        writer.discard()
        reader.close()
    return verdicts


def _opened(path: Path, outputs: list[Output]) -> ShardWriter:
    try:
        return ShardWriter(path, outputs, METADATA)
    except OSError as error:
        raise _cannot(path, error) from None


def _cannot(path: Path, error: OSError) -> Day0Error:
    return Day0Error(
        str(path),
        f"cannot be written: {error.strerror or error}",
        hint="nothing of it was left behind; make room or name another folder, and run the same command to go on",
    )


def _write(item: Item, work: _Work) -> Verdict:
    if item.kept is not None:
        _copy(item, work)
        return Verdict()
    if item.weight is None:
        return Verdict()
    if item.target is None:
        _copy_rows(item, item.weight, work)
        return Verdict()
    if item.target.keeps is not None and not item.transposed and item.target.keeps(item.weight, work.parameters):
        _copy_parts(item, item.weight, work)
        return Verdict()
    return _convert(item, item.weight, item.target, work)


def _copy(item: Item, work: _Work) -> None:
    stored, output = item.kept, item.outputs["payload"]
    if stored is None:
        return
    for begin in range(0, stored.nbytes, COPY_BYTES):
        size = min(COPY_BYTES, stored.nbytes - begin)
        work.writer.append(output.name, work.reader.raw(stored, begin, size, into="copy"))
        work.step(size)


def _copy_parts(item: Item, weight: Weight, work: _Work) -> None:
    for role, part in (("weight", "payload"), ("scale", "scales")):
        stored = weight.parts[part]
        if role == "scale" and item.outputs[role].dtype != stored.dtype:
            # Powers of two as bytes become the same ones as float32.
            count = math.prod(stored.shape)
            for begin in range(0, count, COPY_BYTES):
                some = work.reader.piece(stored, begin, (min(COPY_BYTES, count - begin),), into="copy")
                work.writer.append(item.outputs[role].name, widened(some))
                work.step(some.numel() * some.element_size())
            continue
        for begin in range(0, stored.nbytes, COPY_BYTES):
            size = min(COPY_BYTES, stored.nbytes - begin)
            work.writer.append(item.outputs[role].name, work.reader.raw(stored, begin, size, into="copy"))
            work.step(size)


def _copy_rows(item: Item, weight: Weight, work: _Work) -> None:
    for expert in weight.experts:
        rows = read_rows(weight, work.reader, "payload", expert, 0, weight.rows, weight.columns)
        work.writer.append(item.outputs["payload"].name, rows.contiguous())
        work.step(rows.numel() * rows.element_size())


def _convert(item: Item, weight: Weight, target: Target, work: _Work) -> Verdict:
    found = Verdict()
    for expert in weight.experts:
        job = Job(
            weight=weight,
            expert=expert,
            parameters=work.parameters,
            decode=work.decode,
            buffers=work.reader.buffers,
        )
        prepared = target.prepare(job, work.reader) if target.prepare is not None else None
        found = worst(found, _convert_expert(item, target, replace(job, prepared=prepared), work))
    return found


def _convert_expert(item: Item, target: Target, job: Job, work: _Work) -> Verdict:
    found = Verdict()
    weight, form = job.weight, job.weight.format
    read = form.mx or form.values
    if read is None:
        raise TypeError(form.name)
    turned = _Turned(item=item, buffers=work.reader.buffers)
    each = item.source_bytes // max(1, len(weight.experts) * weight.rows)
    for first, last in tiles(weight, tile_rows(weight)):
        source = read(weight, work.reader, job.expert, first, last)
        made = target.tile(replace(job, first=first), source)
        found = worst(found, made.verdict)
        if found.refusal:
            raise Day0Error(weight.name, found.refusal, hint=REPAIR)
        for role, tensor in made.tensors.items():
            if item.transposed:
                turned.add(role, tensor)
            else:
                work.writer.append(item.outputs[role].name, tensor)
        work.step(each * (last - first))
    for role, matrix in turned.matrices.items():
        work.writer.append(item.outputs[role].name, matrix)
    return found


@dataclass(kw_only=True)
class _Turned:
    """Matrices of one expert with rows and columns changed: their bytes come in an order that no tile has."""

    item: Item
    buffers: Buffers
    matrices: dict[str, torch.Tensor] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    def add(self, role: str, tensor: torch.Tensor) -> None:
        """Take the next rows of a matrix."""
        output = self.item.outputs[role]
        columns, rows = output.shape[-2:]
        dtype = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[BITS[output.dtype] // 8]
        next_RC = tensor.reshape(-1).view(torch.uint8).view(dtype).view(-1, columns)
        first = self.rows.get(role, 0)
        if role not in self.matrices:
            self.matrices[role] = self.buffers.take(f"turned {role}", (columns, rows), dtype)
        self.matrices[role][:, first : first + len(next_RC)].copy_(next_RC.t())
        self.rows[role] = first + len(next_RC)

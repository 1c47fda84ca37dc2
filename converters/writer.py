"""Write a safetensors file piece by piece, under a name that says it is not finished.

All sizes are known beforehand, so the header goes first and every piece to its place. A reader would accept a file of
the right size with zeros where tensors are missing; so nothing has its final name before every byte was written.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from day0.converters.header import BITS
from day0.errors import Day0Error

__all__ = ["PART", "Output", "ShardWriter", "bytes_of", "planned_size", "sync_folder"]

PART = ".part"
_ALIGN = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """A tensor that a file will hold."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How many it takes."""
        return math.prod(self.shape) * BITS[self.dtype] // 8


def _header(outputs: Iterable[Output], metadata: dict[str, str]) -> tuple[bytes, dict[str, int]]:
    """Return the header, padded so that the data begins aligned, and where each tensor begins after it."""
    # Wide dtypes first, and what has an odd number of bytes last: then every tensor lies aligned for its dtype.
    ordered = sorted(outputs, key=lambda one: (-BITS[one.dtype], one.nbytes % 8 != 0))
    document: dict[str, object] = {"__metadata__": metadata}
    begins: dict[str, int] = {}
    at = 0
    for one in ordered:
        begins[one.name] = at
        document[one.name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": [at, at + one.nbytes]}
        at += one.nbytes
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    return len(text).to_bytes(8, "little") + text, begins


def planned_size(outputs: Iterable[Output], metadata: dict[str, str]) -> int:
    """Return the size of the finished file."""
    outputs = tuple(outputs)
    return len(_header(outputs, metadata)[0]) + sum(one.nbytes for one in outputs)


class ShardWriter:
    """One file in the making. Pieces of one tensor come in order; tensors may be written side by side."""

    def __init__(self, path: Path, outputs: Iterable[Output], metadata: dict[str, str]) -> None:
        outputs = tuple(outputs)
        self.path = path
        self.part = path.with_name(path.name + PART)
        self._sizes = {one.name: one.nbytes for one in outputs}
        self._written = dict.fromkeys(self._sizes, 0)
        head, begins = _header(outputs, metadata)
        self._begins = {name: len(head) + begin for name, begin in begins.items()}
        # O_EXCL and O_NOFOLLOW: what lies there under this name is not ours to write through.
        self.part.unlink(missing_ok=True)
        self._file = os.open(self.part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        self._put(memoryview(head), 0)

    def append(self, name: str, piece: torch.Tensor) -> None:
        """Write the next bytes of a tensor; `piece` is contiguous, of any dtype."""
        data = bytes_of(piece)
        done = self._written[name]
        if done + len(data) > self._sizes[name]:
            raise ValueError(f"{name}: more bytes than planned")
        self._put(data, self._begins[name] + done)
        self._written[name] = done + len(data)

    def _put(self, data: memoryview, at: int) -> None:
        while data:
            count = os.pwrite(self._file, data, at)
            data, at = data[count:], at + count

    def finish(self) -> None:
        """Make it durable, then give it its name. Raises Day0Error where a tensor is not complete."""
        for name, size in self._sizes.items():
            if self._written[name] != size:
                what = f"{name}: {self._written[name]:,} of {size:,} bytes were written"
                raise Day0Error(str(self.path), what, hint="the source may have changed meanwhile; run it again")
        os.fsync(self._file)
        os.close(self._file)
        self._file = -1
        self.part.rename(self.path)
        sync_folder(self.path.parent)

    def discard(self) -> None:
        """Leave nothing behind."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.part.unlink(missing_ok=True)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor."""
    flat: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

"""Bytes of tensors out of open files, into buffers that are used again and again."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch

from day0.converters.header import TORCH, Stored
from day0.converters.writer import bytes_of
from day0.errors import Day0Error

__all__ = ["Buffers", "Reader"]


class Buffers:
    """Memory by name, kept between calls; it grows to the largest that was asked for."""

    def __init__(self) -> None:
        self._memory: dict[str, torch.Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor over the memory of this name; what it held before is lost."""
        need = math.prod(shape) * dtype.itemsize
        found = self._memory.get(name)
        if found is None or found.numel() < need:
            found = self._memory[name] = torch.empty(max(need, 1), dtype=torch.uint8)
        return found[:need].view(dtype).view(shape)


class Reader:
    """Reads pieces of tensors; keeps one file open per shard. One for each worker."""

    def __init__(self) -> None:
        self.buffers = Buffers()
        self._files: dict[Path, int] = {}

    def piece(self, stored: Stored, first: int, shape: tuple[int, ...], *, into: str) -> torch.Tensor:
        """Return `shape` values of a tensor from its value number `first` on, in the buffer named `into`.

        Raises Day0Error where the file cannot be read, or has become shorter.
        """
        dtype = TORCH[stored.dtype]
        out = self.buffers.take(into, shape, dtype)
        begin = first * dtype.itemsize
        size = out.numel() * dtype.itemsize
        if begin + size > stored.nbytes:
            raise ValueError(f"{stored.name}: a piece beyond its end")
        self._fill(stored, bytes_of(out), stored.begin + begin)
        return out

    def whole(self, stored: Stored, *, into: str) -> torch.Tensor:
        """Return all of a (small) tensor."""
        return self.piece(stored, 0, stored.shape, into=into)

    def raw(self, stored: Stored, begin: int, size: int, *, into: str) -> torch.Tensor:
        """Return bytes of a tensor of any dtype."""
        out = self.buffers.take(into, (size,), torch.uint8)
        self._fill(stored, bytes_of(out), stored.begin + begin)
        return out

    def _fill(self, stored: Stored, data: memoryview, at: int) -> None:
        try:
            file = self._opened(stored.file)
            while data:
                count = os.preadv(file, [data], at)
                if count == 0:
                    what = f"it ends at byte {at:,}, within {stored.name}"
                    raise Day0Error(str(stored.file), what, hint="it became shorter; fetch it again")
                data, at = data[count:], at + count
        except OSError as error:
            raise Day0Error(str(stored.file), f"cannot be read: {error.strerror}", hint="check the disk") from None

    def _opened(self, path: Path) -> int:
        if path not in self._files:
            self._files[path] = os.open(path, os.O_RDONLY)
        return self._files[path]

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

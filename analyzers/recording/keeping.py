"""Keep the values of traced calls: one file a signature, bounded, with their hashes in an index."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save

from day0.records import Signature
from day0.reference_ops.signatures import signature_id, tensors_in

__all__ = ["INDEX", "KEEPER", "MOST_CALL_BYTES", "MOST_RUN_BYTES", "Keeper", "keeping"]

INDEX = "index.json"
MOST_CALL_BYTES = 16 << 20
MOST_RUN_BYTES = 512 << 20

KEEPER: ContextVar[Callable[[Signature, Any], None] | None] = ContextVar("day0_keeper", default=None)
"""Called by a recorder with each new signature and the arguments of its first call, before the call runs."""


class Keeper:
    """Writes the arguments of each new signature to a folder, as long as there is room."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, str] = {}
        """SHA-256 of each file, by id of the signature."""
        self.left_out: dict[str, str] = {}
        """Why a call was not kept."""
        self.bytes = 0

    def __call__(self, signature: Signature, arguments: Any) -> None:
        """Keep the arguments of a call, unless they were kept, are no plain values, or too many."""
        name, tensors = signature_id(signature), list(tensors_in(arguments))
        if name in self.files or not tensors or any(one.device.type != "cpu" for one in tensors):
            return
        size = sum(one.numel() * one.element_size() for one in tensors)
        if size > MOST_CALL_BYTES or self.bytes + size > MOST_RUN_BYTES:
            room = MOST_CALL_BYTES if size > MOST_CALL_BYTES else MOST_RUN_BYTES
            self.left_out[name] = f"{size / 2**20:,.1f} MiB do not fit into {room >> 20} MiB"
            return
        try:
            data = save({str(number): _copied(one) for number, one in enumerate(tensors)})
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            self.left_out[name] = f"safetensors does not take it: {error}"
            return
        (self.folder / f"{name}.safetensors").write_bytes(data)
        self.files[name] = hashlib.sha256(data).hexdigest()
        self.bytes += size

    def finish(self) -> None:
        """Write the index. Without it the folder counts as empty."""
        index = {"files": dict(sorted(self.files.items())), "left_out": dict(sorted(self.left_out.items()))}
        (self.folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


@contextmanager
def keeping(folder: Path) -> Iterator[Keeper]:
    """Let recorders keep values in this context; the folder is there afterwards, whole, or not at all."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    keeper = Keeper(part)
    token = KEEPER.set(keeper)
    try:
        yield keeper
        keeper.finish()
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    finally:
        KEEPER.reset(token)
        shutil.rmtree(part, ignore_errors=True)

"""Values that a model really had, as `day0 trace --capture` kept them: read, and checked before they are used."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.valid import mismatch
from day0.analyzers.recording.keeping import INDEX
from day0.errors import Day0Error
from day0.reference_ops.signatures import materialise, tensors_in

__all__ = ["FOLDER", "MOST_BYTES", "find_captured", "index_hash", "read_captured"]

FOLDER = "captured"
MOST_BYTES = 64 << 20
"""Of one file: more than a captured call may have, so that a hostile folder does not fill the machine."""


def find_captured(folder: Path) -> dict[str, str]:
    """Return file and hash of the captured call of each signature, as a case names them; nothing without an index.

    Raises Day0Error for an index that is damaged.
    """
    path = folder / FOLDER / INDEX
    if not path.is_file():
        return {}
    again = "capture again: `day0 trace MODEL --capture --force`"
    if path.stat().st_size > MOST_BYTES:
        raise Day0Error(str(path), f"it has {path.stat().st_size} bytes, and an index is small", hint=again)
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        return {str(name): f"{folder / FOLDER / _plain(str(name))}#{hash_!s}" for name, hash_ in sorted(files.items())}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Day0Error(str(path), f"the index of captured values is damaged: {error}", hint=again) from None


def index_hash(folder: Path) -> str:
    """Return the SHA-256 of the index, which holds those of all files; empty where nothing was captured."""
    path = folder / FOLDER / INDEX
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _plain(name: str) -> str:
    if not name.isalnum():
        raise ValueError(f"{name!r} is no id of a signature")
    return f"{name}.safetensors"


def read_captured(case: Case) -> CaseInputs | Unfillable:
    """Read the arguments of a case from its file. Unfillable, with the reason, where that is missing or damaged."""
    name, _, wanted = case.captured.rpartition("#")
    path = Path(name)
    try:
        if path.stat().st_size > MOST_BYTES:
            return Unfillable(reason=f"{path.name}: {path.stat().st_size} bytes are more than captured values have")
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != wanted:
            return Unfillable(
                reason=f"{path.name}: the captured values are not those that were written: their hash differs"
            )
        stored = load(data)
    except OSError as error:
        return Unfillable(reason=f"{path.name}: the captured values cannot be read: {error.strerror}")
    except (SafetensorError, ValueError) as error:
        return Unfillable(reason=f"{path.name}: the captured values are damaged: {error}")
    args, kwargs = materialise(case.signature, "cpu")
    return _filled(case, args, kwargs, stored)


def _filled(
    case: Case, args: tuple[Any, ...], kwargs: dict[str, Any], stored: dict[str, torch.Tensor]
) -> CaseInputs | Unfillable:
    for number, tensor in enumerate(tensors_in((args, kwargs))):
        values = stored.get(str(number))
        if values is None or values.shape != tensor.shape or values.dtype != tensor.dtype:
            return Unfillable(reason=f"tensor {number} was not captured, or has another shape or dtype")
        _put(tensor, values)
    if found := mismatch(case.signature, args, kwargs, ranges=False):
        return Unfillable(reason=f"what was captured is not the traced call: {found}")
    return CaseInputs(args=args, kwargs=kwargs)


def _put(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values into a tensor whose elements may share memory: it had one value at each place then, too."""
    for dim, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if step == 0 and size > 1:
            tensor, values = tensor.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    tensor.copy_(values)

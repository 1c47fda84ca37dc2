"""The header of a safetensors file, read by hand: it says where every byte lies, and any of it may be a lie.

Nothing is allocated by what a header claims before that was compared with the size of the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from day0.converters.textfile import size_of_file
from day0.errors import Day0Error
from day0.hashing import hash_bytes

__all__ = ["BITS", "TORCH", "Header", "Stored", "read_header"]

MAX_HEADER_BYTES = 100 << 20
"""The limit of the format itself."""
MAX_DIMENSIONS = 64
LARGEST = 1 << 62

BITS = {
    "F4": 4,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
TORCH = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}
"""What the converters compute with; the rest is only copied."""
_AGAIN = "fetch the file again; it may be cut off, or not be what it says"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """One tensor in a file: what it is and where its bytes lie."""

    file: Path
    name: str
    dtype: str
    """As the header writes it, such as U8 or F8_E4M3."""
    shape: tuple[int, ...]
    begin: int
    """Of its first byte, from the beginning of the file."""
    nbytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What a file says it holds."""

    path: Path
    size: int
    changed_at: int
    """When the file was written last, in nanoseconds: whether it is still the same when it has been converted."""
    tensors: dict[str, Stored]
    metadata: dict[str, str]
    digest: str


def read_header(path: Path) -> Header:
    """Read and check the header of one file.

    Raises Day0Error: no safetensors file, cut off, longer than its tensors, not JSON in UTF-8, a name twice, an entry
    that is incomplete, an unknown dtype, a shape that does not take the bytes of its place, tensors that overlap or
    leave a gap.
    """
    text, size, changed_at = _text(path)
    document = _parsed(path, text)
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Day0Error(str(path), "its __metadata__ is no map from texts to texts", hint=_AGAIN)
    begin = 8 + len(text)
    tensors = {name: _stored(path, name, entry, begin) for name, entry in document.items()}
    _refuse_gaps(path, tensors, begin, size)
    return Header(
        path=path, size=size, changed_at=changed_at, tensors=tensors, metadata=metadata, digest=hash_bytes(text)
    )


def _text(path: Path) -> tuple[bytes, int, int]:
    try:
        size, changed_at = size_of_file(path), path.stat().st_mtime_ns
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                what = f"no safetensors file, or cut off: it has {size:,} bytes, and its header claims {length:,}"
                raise Day0Error(str(path), what, hint=_AGAIN)
            text = file.read(length)
    except OSError as error:
        raise Day0Error(str(path), f"cannot be read: {error.strerror}", hint="check its permissions") from None
    if len(text) != length:
        raise Day0Error(str(path), "it became shorter while it was read", hint=_AGAIN)
    return text, size, changed_at


def _parsed(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise Day0Error(str(path), f"{name[:120]!r} stands twice in its header", hint=_AGAIN)
            # An escape can spell half a character, which no file that we write can hold.
            name.encode()
            found[name] = value
        return found

    try:
        # Decoded here: json would also take UTF-16, which no other reader does.
        document = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise Day0Error(str(path), f"its header is not JSON: {str(error)[:200]}", hint=_AGAIN) from None
    if not isinstance(document, dict):
        raise Day0Error(str(path), "its header is no JSON object", hint=_AGAIN)
    return document


def _stored(path: Path, name: str, entry: Any, begin: int) -> Stored:
    def refuse(what: str) -> Day0Error:
        return Day0Error(str(path), f"tensor {name[:120]!r}: {what}", hint=_AGAIN)

    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise refuse("its entry in the header is incomplete")
    dtype, shape, place = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not _whole(shape) or not _whole(place) or len(place) != 2 or len(shape) > MAX_DIMENSIONS:
        raise refuse("its shape or place is no short list of whole numbers")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise refuse(f"day0 does not know its dtype {str(dtype)[:40]!r}")
    bits = BITS[dtype]
    for size in shape:
        bits *= size
        if bits > LARGEST:
            raise refuse(f"no file holds shape {str(shape)[:120]}")
    if bits % 8 or bits // 8 != place[1] - place[0]:
        taken = f"{bits // 8:,} bytes" if bits % 8 == 0 else "no whole number of bytes"
        raise refuse(f"{dtype}{shape} takes {taken}, and its place has {place[1] - place[0]:,}")
    return Stored(
        file=path, name=name, dtype=dtype, shape=tuple(shape), begin=begin + place[0], nbytes=place[1] - place[0]
    )


def _whole(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < LARGEST for item in value)


def _refuse_gaps(path: Path, tensors: dict[str, Stored], begin: int, size: int) -> None:
    at = begin
    for one in sorted(tensors.values(), key=lambda one: (one.begin, one.nbytes)):
        if one.begin != at:
            wrong = (
                "overlaps another tensor" if one.begin < at else f"leaves {one.begin - at:,} bytes of nobody before it"
            )
            raise Day0Error(str(path), f"tensor {one.name[:120]!r} {wrong}", hint=_AGAIN)
        at += one.nbytes
    if at != size:
        wrong = (
            f"cut off: its tensors end at byte {at:,}" if at > size else f"longer than its tensors, which end at {at:,}"
        )
        raise Day0Error(str(path), f"it is {wrong}, and it has {size:,} bytes", hint=_AGAIN)

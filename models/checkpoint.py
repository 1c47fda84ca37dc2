"""A folder of safetensors files: what it holds, read from the headers alone, and each tensor when it is asked for.

Nothing is unpickled, and nothing is allocated before every size was compared with what the file really holds.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from day0.errors import Day0Error
from day0.hashing import hash_bytes, hash_file, hash_json

__all__ = ["Checkpoint", "StoredTensor", "find_checkpoint"]

MAX_HEADER_BYTES = 100 << 20
"""The limit of the format itself."""
MAX_INDEX_BYTES = 256 << 20
HASHED_WHOLE = 256 << 20
"""A larger checkpoint is told from another by its headers, sizes and times: reading a terabyte takes an hour."""

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}

_AGAIN = "fetch the file again; it may be cut off"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTensor:
    """One tensor of a file, not read yet."""

    file: Path
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """How many it takes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> torch.Tensor:
        """Read it, onto the CPU. Raises Day0Error naming the file where that fails."""
        try:
            tensor: torch.Tensor = _opened(self.file).get_tensor(self.name)
        except (SafetensorError, OSError) as error:
            raise Day0Error(str(self.file), f"tensor {self.name} cannot be read: {error}", hint=_AGAIN) from None
        return tensor


@functools.lru_cache(maxsize=64)
def _opened(file: Path) -> Any:
    # Only maps the file; leaving it open costs no memory.
    return safe_open(file, framework="pt", device="cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """All tensors of a folder, by name."""

    folder: Path
    files: tuple[Path, ...]
    tensors: dict[str, StoredTensor]

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors.values())

    def fingerprint(self) -> str:
        """Hash it: the bytes of a small one, the headers, sizes and times of a large one."""
        if sum(file.stat().st_size for file in self.files) <= HASHED_WHOLE:
            return hash_json([[file.name, hash_file(file)] for file in self.files])
        facts = [(file, file.stat()) for file in self.files]
        return hash_json([[file.name, one.st_size, one.st_mtime_ns, _header_hash(file)] for file, one in facts])


def find_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the weights of a folder; None where it has none.

    Raises Day0Error: pickled weights only, files that are missing, cut off or garbage, an index that does not fit them
    or points out of the folder, one name in two files.
    """
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    if len(indexes) > 1:
        names = ", ".join(path.name for path in indexes)
        raise Day0Error(str(folder), f"there are several indexes: {names}", hint="keep the one to use")
    if indexes:
        return _of_index(folder, indexes[0])
    files = tuple(sorted(folder.glob("*.safetensors")))
    single = folder / "model.safetensors"
    if single in files:
        files = (single,)
    if files:
        return Checkpoint(folder=folder, files=files, tensors=_joined(files))
    _refuse_pickles(folder)
    return None


_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def _refuse_pickles(folder: Path) -> None:
    found = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise Day0Error(
            str(folder / found[0]) + more,
            "these weights are pickled, and a pickle can run any code; day0 reads safetensors only",
            hint="convert them: load them where you trust them, then save_pretrained(FOLDER)",
        )


# ------------------------------------------------------------------------------------------------- the index


def _of_index(folder: Path, path: Path) -> Checkpoint:
    places = {name: _inside(path, folder, file) for name, file in _weight_map(path).items()}
    files = tuple(sorted(set(places.values())))
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        what = f"{len(absent)} of the {len(files)} files that {path.name} names are missing: {_some(absent)}"
        raise Day0Error(str(folder), what, hint="the download may not be finished; --mode meta needs no weights")
    headers = {file: _header(file) for file in files}
    lost = [name for name, file in places.items() if name not in headers[file]]
    if lost:
        what = f"{places[lost[0]].name} does not hold {_some(lost)}, which the index places there"
        raise Day0Error(str(path), what, hint="index and files are of different checkpoints; fetch them again")
    return Checkpoint(folder=folder, files=files, tensors={name: headers[file][name] for name, file in places.items()})


def _weight_map(path: Path) -> dict[str, str]:
    if path.stat().st_size > MAX_INDEX_BYTES:
        raise Day0Error(str(path), f"it has {path.stat().st_size:,} bytes; no index is that large", hint=_AGAIN)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Day0Error(str(path), f"it is not JSON: {error}", hint=_AGAIN) from None
    found = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(found, dict) or not found or not all(isinstance(file, str) for file in found.values()):
        raise Day0Error(str(path), "it has no weight_map from tensors to files", hint=_AGAIN)
    return found


def _inside(index: Path, folder: Path, file: str) -> Path:
    parts = PurePosixPath(file).parts
    bad = not parts or ".." in parts or file.startswith("/") or "\\" in file or "\0" in file or ":" in file
    if bad or not file.endswith(".safetensors"):
        what = f"it points to {file[:100]!r}, which is no safetensors file of this folder"
        raise Day0Error(str(index), what, hint="do not trust this checkpoint; fetch it again from where you do")
    return folder / file


def _some(names: Iterable[str], most: int = 3) -> str:
    names = sorted(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name[:120] for name in names[:most]) + more


# ----------------------------------------------------------------------------------------------- the headers


def _joined(files: tuple[Path, ...]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in _header(file).items():
            if name in tensors:
                what = f"{name} is also in {tensors[name].file.name}, and there is no index to say which counts"
                raise Day0Error(str(file), what, hint="keep the files of one checkpoint in the folder")
            tensors[name] = tensor
    return tensors


def _header_bytes(file: Path) -> tuple[bytes, int]:
    """Return the header of a file, and how many bytes follow it."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                what = f"it is no safetensors file, or cut off: {size:,} bytes, of which the header claims {length:,}"
                raise Day0Error(str(file), what, hint=_AGAIN)
            return opened.read(length), size - 8 - length
    except OSError as error:
        raise Day0Error(str(file), f"cannot be read: {error.strerror}", hint="check its permissions") from None


def _header_hash(file: Path) -> str:
    return hash_bytes(_header_bytes(file)[0])


def _header(file: Path) -> dict[str, StoredTensor]:
    text, left = _header_bytes(file)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Day0Error(str(file), f"its header is not JSON: {error}", hint=_AGAIN) from None
    if not isinstance(document, dict):
        raise Day0Error(str(file), "its header is no JSON object", hint=_AGAIN)
    document.pop("__metadata__", None)
    return {name: _stored(file, name, entry, left) for name, entry in document.items()}


def _stored(file: Path, name: str, entry: Any, left: int) -> StoredTensor:
    def refuse(what: str) -> Day0Error:
        return Day0Error(str(file), f"tensor {name[:120]!r}: {what}", hint=_AGAIN)

    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise refuse("its entry in the header is incomplete")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _whole(shape) or not _whole(offsets) or len(offsets) != 2 or len(shape) > 64:
        raise refuse("its shape or place is no list of whole numbers")
    if entry["dtype"] not in DTYPES:
        raise refuse(f"day0 does not know its dtype {str(entry['dtype'])[:40]!r}")
    stored = StoredTensor(file=file, name=name, dtype=DTYPES[entry["dtype"]], shape=tuple(shape))
    begin, end = offsets
    if end - begin != stored.bytes:
        raise refuse(f"shape {shape} takes {stored.bytes:,} bytes, and its place has {end - begin:,}")
    if end > left:
        raise refuse(f"it ends at byte {end:,} of the data, and the file has {left:,}: it is cut off")
    return stored


def _whole(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)

"""Read what `torch.export.save` wrote, without `torch.export.load`.

torch's own loader unpickles: custom objects and odd tensors with `weights_only=False`, example inputs with a fallback to
it; and it evaluates the text of symbolic sizes. An archive is only a zip file with a graph in JSON and raw tensors
beside it, and both are read here as data. What needs a pickle is refused; the pickled example inputs are left alone.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from day0.errors import Day0Error

__all__ = ["DTYPES", "Archive", "StoredWeight", "read_archive"]

MAX_JSON_BYTES = 256 << 20
MAX_ENTRIES = 1 << 20
SCHEMA = 8
"""Major version of the JSON graph, of torch 2.8 to 2.13."""

DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    9: torch.complex32,
    10: torch.complex64,
    11: torch.complex128,
    12: torch.bool,
    13: torch.bfloat16,
    28: torch.uint16,
    29: torch.float8_e4m3fn,
    30: torch.float8_e5m2,
    31: torch.float8_e4m3fnuz,
    32: torch.float8_e5m2fnuz,
}
"""By their numbers in the file."""

_AGAIN = "save it again with torch.export.save"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredWeight:
    """A parameter, buffer or constant of the archive, not read yet."""

    name: str
    entry: str
    """Of the zip file."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    is_parameter: bool

    @property
    def bytes(self) -> int:
        """How many its elements take."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """The parts of an exported program that matter for running it."""

    path: Path
    program: Mapping[str, Any]
    """The JSON document."""
    weights: Mapping[str, StoredWeight]

    @property
    def graph_module(self) -> Mapping[str, Any]:
        """The graph with its signature."""
        return as_mapping(self.path, self.program.get("graph_module"), "graph_module")

    def read(self, weight: StoredWeight) -> torch.Tensor:
        """Read one tensor, onto the CPU. Raises Day0Error where the file does not hold it."""
        try:
            with zipfile.ZipFile(self.path) as opened:
                data = bytearray(opened.read(weight.entry))
        except (zipfile.BadZipFile, OSError, KeyError) as error:
            raise Day0Error(str(self.path), f"{weight.entry} cannot be read: {error}", hint=_AGAIN) from None
        size = weight.dtype.itemsize
        if 0 in weight.shape:
            return torch.empty_strided(weight.shape, weight.strides, dtype=weight.dtype)
        flat = torch.frombuffer(data, dtype=torch.uint8)[: len(data) // size * size].view(weight.dtype)
        return flat.as_strided(weight.shape, weight.strides, weight.offset)


def read_archive(path: Path) -> Archive:
    """Open an archive. Raises Day0Error for what is none, is cut off, is of another version, or needs a pickle."""
    if not path.is_file():
        raise Day0Error(f"export:{path}", "there is no such file", hint="give a file of torch.export.save")
    try:
        with zipfile.ZipFile(path) as opened:
            entries = {info.filename: info for info in opened.infolist()}
            _check_entries(path, entries)
            root, model = _model_name(path, entries)
            program = _json(path, opened, f"{root}/models/{model}.json")
            _check_version(path, program)
            weights: dict[str, StoredWeight] = {}
            for kind, place in (("weights", "weights"), ("constants", "constants")):
                config = f"{root}/data/{place}/{model}_{kind}_config.json"
                if config not in entries:
                    raise Day0Error(str(path), f"it has no {config}: its weights are pickled or gone", hint=_AGAIN)
                weights |= _weights(path, _json(path, opened, config), f"{root}/data/{place}", entries)
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as error:
        # RuntimeError and NotImplementedError: encrypted entries and unknown compression.
        raise Day0Error(str(path), f"it is no archive of torch.export.save: {error}", hint=_AGAIN) from None
    return Archive(path=path, program=program, weights=weights)


def _check_entries(path: Path, entries: Mapping[str, zipfile.ZipInfo]) -> None:
    if len(entries) > MAX_ENTRIES:
        raise Day0Error(str(path), f"it has {len(entries):,} entries", hint="is it an exported program?")
    packed = next((name for name, info in entries.items() if info.compress_type != zipfile.ZIP_STORED), None)
    if packed is not None:
        # torch stores entries as they are; a small compressed entry may unfold to more than the memory.
        raise Day0Error(str(path), f"its entry {packed[:100]!r} is compressed, as torch never does", hint=_AGAIN)


def _model_name(path: Path, entries: Mapping[str, Any]) -> tuple[str, str]:
    found = [name.split("/") for name in entries if name.endswith(".json") and name.count("/") == 2]
    models = sorted((root, file.removesuffix(".json")) for root, folder, file in found if folder == "models")
    if len(models) == 1:
        return models[0]
    named = [one for one in models if one[1] == "model"]
    if named:
        return named[0]
    if models:
        names = ", ".join(model for _, model in models)
        raise Day0Error(str(path), f"it holds several programs: {names}", hint="save one of them in a file of its own")
    what = "it holds no program"
    if any("/aotinductor/" in name for name in entries):
        what = "it holds compiled code (AOTInductor) and no graph"
    if "serialized_exported_program.json" in entries:
        what = "it was written by torch 2.7 or older, with pickled weights"
    raise Day0Error(str(path), what, hint=_AGAIN)


def _json(path: Path, opened: zipfile.ZipFile, name: str) -> Mapping[str, Any]:
    size = opened.getinfo(name).file_size
    if size > MAX_JSON_BYTES:
        raise Day0Error(str(path), f"{name} has {size:,} bytes; no graph is that large", hint=_AGAIN)
    try:
        return as_mapping(path, json.loads(opened.read(name)), name)
    except (ValueError, RecursionError) as error:
        raise Day0Error(str(path), f"{name} is not JSON: {error}", hint=_AGAIN) from None


def as_mapping(path: Path, value: Any, what: str) -> Mapping[str, Any]:
    """Return a value that has to be a JSON object. Raises Day0Error if it is not."""
    if not isinstance(value, dict):
        raise Day0Error(str(path), f"{what} is no JSON object", hint=_AGAIN)
    return value


def _check_version(path: Path, program: Mapping[str, Any]) -> None:
    version = program.get("schema_version")
    major = version.get("major") if isinstance(version, dict) else None
    if major != SCHEMA:
        what = f"its graph has schema {major}, and this day0 reads {SCHEMA}"
        raise Day0Error(str(path), what, hint="save it again with torch 2.8 to 2.13")


def _weights(
    path: Path, document: Mapping[str, Any], folder: str, entries: Mapping[str, zipfile.ZipInfo]
) -> dict[str, StoredWeight]:
    config = as_mapping(path, document.get("config"), f"the list of {folder}")
    return {name: _weight(path, name, one, folder, entries) for name, one in config.items()}


def _weight(path: Path, name: str, one: Any, folder: str, entries: Mapping[str, zipfile.ZipInfo]) -> StoredWeight:
    def refuse(what: str) -> Day0Error:
        return Day0Error(str(path), f"{name[:120]!r}: {what}", hint=_AGAIN)

    if not isinstance(one, dict) or one.get("use_pickle") or not isinstance(one.get("tensor_meta"), dict):
        raise refuse("it is no plain tensor but a pickled object, and unpickling can run any code")
    meta, entry = one["tensor_meta"], f"{folder}/{one.get('path_name')}"
    if entry not in entries:
        raise refuse(f"there is no {entry[:120]!r} in the file")
    shape, strides = _ints(meta.get("sizes")), _ints(meta.get("strides"))
    offset, dtype = _ints([meta.get("storage_offset")]), DTYPES.get(meta.get("dtype", 0))
    if shape is None or strides is None or offset is None or len(shape) != len(strides) or len(shape) > 64:
        raise refuse("its sizes are no list of whole numbers")
    if dtype is None:
        raise refuse(f"day0 does not know its dtype, number {meta.get('dtype')!r}")
    reach = offset[0] + 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    if 0 not in shape and reach * dtype.itemsize > entries[entry].file_size:
        raise refuse(f"it needs {reach * dtype.itemsize:,} bytes, and {entry} has {entries[entry].file_size:,}")
    return StoredWeight(
        name=name,
        entry=entry,
        dtype=dtype,
        shape=shape,
        strides=strides,
        offset=offset[0],
        is_parameter=bool(one.get("is_param")),
    )


def _ints(values: Any) -> tuple[int, ...] | None:
    if not isinstance(values, list):
        return None
    found = [one.get("as_int") if isinstance(one, dict) else None for one in values]
    whole = [one for one in found if type(one) is int and 0 <= one < 1 << 62]
    return tuple(whole) if len(whole) == len(found) else None

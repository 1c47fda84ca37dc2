"""A checkpoint folder as a converter sees it: tensors by name, the config, and the files that just come along."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from day0.converters.header import Header, Stored, read_header
from day0.converters.journal import JOURNAL
from day0.converters.textfile import read_json
from day0.errors import Day0Error
from day0.hashing import hash_json

__all__ = ["INDEX", "MANIFEST", "Folder", "open_folder"]

INDEX = ".safetensors.index.json"
MANIFEST = "day0-convert.json"
"""The record of the conversion that made a folder; what is made from it gets one of its own."""
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_AGAIN = "fetch the checkpoint again; it may not be complete"


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """What a checkpoint folder holds."""

    path: Path
    shards: dict[str, Header]
    tensors: dict[str, Stored]
    config: dict[str, Any]
    index: str | None
    """Name of the index file, where there is one."""
    index_metadata: dict[str, Any]
    others: tuple[str, ...]
    """Files that come along as they are, relative to the folder."""
    left: tuple[str, ...]
    """Files that stay: pickled weights, and links that lead out of the folder."""

    def fingerprint(self) -> str:
        """Hash size and header of every shard, and the config."""
        files = [[name, one.size, one.digest] for name, one in sorted(self.shards.items())]
        return hash_json([files, self.config])


def open_folder(path: Path) -> Folder:
    """Read index, headers and config of a checkpoint.

    Raises Day0Error: no folder, no safetensors, an index that names files which are absent or lie outside, tensors that
    are not where the index says, a name in two files, anything a header may be wrong in, a config that is not JSON.
    """
    if not path.is_dir():
        raise Day0Error(str(path), "there is no such folder", hint="name the folder that holds config.json")
    if (path / JOURNAL).exists():
        what = "a conversion into it is not finished: tensors are missing"
        raise Day0Error(str(path), what, hint="run the conversion again; it goes on where it ended")
    indexes = sorted(one.name for one in path.glob("*" + INDEX))
    if len(indexes) > 1:
        raise Day0Error(str(path), f"there are several indexes: {', '.join(indexes)}", hint="keep the one to use")
    index = indexes[0] if indexes else None
    document = _json(path / index) if index else {}
    names = _indexed(path, path / index, document) if index else _loose(path)
    shards = {name: read_header(_inside(path, name)) for name in names}
    tensors = _joined(path, shards, document.get("weight_map") if index else None)
    # lexists: a link to nowhere is a file that is missing, not one that nobody needs.
    config = _json(path / "config.json") if os.path.lexists(path / "config.json") else {}
    others, left = _others(path, {*shards, "config.json", MANIFEST, index or ""})
    found = document.get("metadata")
    return Folder(
        path=path,
        shards=shards,
        tensors=tensors,
        config=config,
        index=index,
        index_metadata=found if isinstance(found, dict) else {},
        others=others,
        left=left,
    )


def _json(path: Path) -> dict[str, Any]:
    return read_json(_inside(path.parent, path.name), hint=_AGAIN)


def _indexed(folder: Path, index: Path, document: dict[str, Any]) -> list[str]:
    found = document.get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(one, str) for one in found.values()):
        raise Day0Error(str(index), "it has no weight_map from tensors to files", hint=_AGAIN)
    names = sorted(set(found.values()))
    for name in names:
        parts = PurePosixPath(name).parts
        bad = len(parts) != 1 or parts[0] in ("..", "/") or any(char in name for char in "\\:")
        bad = bad or not name.isprintable()
        if bad or not name.endswith(".safetensors"):
            what = f"it points to {name[:100]!r}, which is no safetensors file of this folder"
            raise Day0Error(str(index), what, hint="do not trust this checkpoint; fetch it from where you do")
    absent = [name for name in names if not os.path.isfile(folder / name)]  # noqa: PTH113 - False for names of any length
    if absent:
        what = f"{len(absent)} of the {len(names)} files that {index.name} names are missing: {', '.join(one[:100] for one in absent[:3])}"
        raise Day0Error(str(folder), what, hint="the download may not be finished")
    return names


def _loose(folder: Path) -> list[str]:
    names = sorted(one.name for one in folder.glob("*.safetensors"))
    if "model.safetensors" in names:
        names = ["model.safetensors"]
    absent = [name for name in names if not (folder / name).is_file()]
    absent += [repr(name) for name in names if not name.isprintable()]
    if absent:
        # In a hub cache: a link to a blob that was not fetched.
        what = f"{len(absent)} of its {len(names)} safetensors files are no files: {', '.join(absent[:3])}"
        raise Day0Error(str(folder), what, hint="the download may not be finished")
    if not names:
        pickled = sorted(one.name for one in folder.iterdir() if one.suffix in _PICKLED)
        what = f"its weights are pickled ({pickled[0]})" if pickled else "it holds no safetensors files"
        raise Day0Error(str(folder), what, hint="day0 reads safetensors only, because a pickle can run any code")
    return names


def _inside(folder: Path, name: str) -> Path:
    """Return the path of a file, which may be a link only to inside the folder, or into the blobs of a hub cache."""
    path = folder / name
    if not _stays(folder, path):
        what = f"it is a link to {os.path.realpath(path)[:200]}, outside the checkpoint"
        raise Day0Error(str(path), what, hint="put the file itself there, if it belongs to the checkpoint")
    return path


def _stays(folder: Path, path: Path) -> bool:
    home = Path(os.path.realpath(folder))
    # A hub cache keeps NAME/snapshots/REVISION/file as a link to NAME/blobs/HASH.
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    # realpath: Path.resolve raises for links that lead to themselves, up to Python 3.12.
    target = Path(os.path.realpath(path))
    return target.is_relative_to(home) or target.is_relative_to(blobs)


def _joined(path: Path, shards: dict[str, Header], places: dict[str, str] | None) -> dict[str, Stored]:
    tensors: dict[str, Stored] = {}
    for file, header in shards.items():
        for name, stored in header.tensors.items():
            if name in tensors:
                what = f"{name[:120]} is in {tensors[name].file.name} and in {file}"
                raise Day0Error(str(path), what, hint="keep the files of one checkpoint in the folder")
            if places is not None and places.get(name) != file:
                what = f"{file} holds {name[:120]}, and the index says {places.get(name, 'nothing of it')}"
                raise Day0Error(str(path), what, hint="index and files are of different checkpoints; fetch them again")
            tensors[name] = stored
    lost = sorted(set(places or ()) - set(tensors))
    if lost:
        what = f"the index names {lost[0][:120]}, and no file holds it"
        raise Day0Error(str(path), what, hint="index and files are of different checkpoints; fetch them again")
    return tensors


def _others(folder: Path, known: set[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    others: list[str] = []
    left: list[str] = []
    for path in sorted(folder.rglob("*")):
        # A name that is no text cannot stand in the report, and nothing that reads checkpoints looks for one.
        name = os.fsencode(path.relative_to(folder)).decode(errors="backslashreplace")
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if name in known or path.is_dir() or hidden:
            continue
        text = name == str(path.relative_to(folder))
        weights = path.suffix == ".safetensors" or path.suffix in _PICKLED or name.endswith(INDEX)
        keep = text and path.is_file() and _stays(folder, path) and not weights
        (others if keep else left).append(name)
    return tuple(others), tuple(left)

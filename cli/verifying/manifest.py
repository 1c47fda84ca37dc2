"""Every file of a run folder with its hash: taken when a report is written, compared when it is verified."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from day0.cli.rundir import RunFolder, write_atomically
from day0.cli.verifying.found import Found
from day0.codec import decode, encode
from day0.errors import Day0Error
from day0.hashing import hash_bytes, hash_file, hash_json
from day0.records import Manifest, ManifestFile

__all__ = ["FILE", "compare_manifest", "take_manifest", "write_manifest"]

FILE = "report/manifest.json"
MOST_PARTS = 64 << 20
"""Of a larger JSON file only the bytes are hashed: it would have to be read whole."""

Progress = Callable[[str], None]


def write_manifest(folder: RunFolder, environment: dict[str, str], progress: Progress) -> None:
    """Hash every file of a folder and write the manifest. It comes last: the other files of a report stand in it."""
    manifest = take_manifest(folder.path, progress)
    write_atomically(folder.file(FILE), encode(manifest, inputs={}, environment=environment))


def take_manifest(folder: Path, progress: Progress) -> Manifest:
    """Return every file below a folder. Raises OSError where one cannot be read."""
    files = []
    for name, path in _files(folder):
        progress(f"hashing {name}")
        files.append(_entry(name, path))
    return Manifest(files=tuple(files))


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield names and paths, sorted: not the manifest itself, nor what only lives while day0 is at work."""
    found: dict[str, Path] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [one for one in folders if one != ".check"]
        links = [one for one in folders if (Path(place) / one).is_symlink()]
        for one in (*names, *links):
            path = Path(place) / one
            # Names that are no Unicode have to fit into JSON.
            name = os.fsencode(path.relative_to(folder).as_posix()).decode("utf-8", "backslashreplace")
            if name not in (FILE, ".held") and not (one.startswith(".") and one.endswith(".part")):
                found[name] = path
    yield from sorted(found.items())


def _entry(name: str, path: Path) -> ManifestFile:
    """Hash one file. A link is its target's name, and what is neither file nor link has no content that stays."""
    state = path.lstat()
    if stat.S_ISLNK(state.st_mode):
        return ManifestFile(path=name, kind="link", bytes=0, sha256=hash_bytes(os.fsencode(path.readlink())))
    if not stat.S_ISREG(state.st_mode):
        return ManifestFile(path=name, bytes=0, sha256="")
    return ManifestFile(path=name, bytes=state.st_size, sha256=hash_file(path), parts=_parts(path, state.st_size))


def _parts(path: Path, size: int) -> dict[str, str]:
    """Return hashes of the parts of a JSON file; none for what is no JSON object or too large."""
    if path.suffix not in (".json", ".lock") or size > MOST_PARTS:
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            return {}
        body = document.get("body")
        named = {f"body.{key}": value for key, value in body.items()} if isinstance(body, dict) else {}
        plain = {key: value for key, value in document.items() if not (key == "body" and named)}
        return {key: hash_json(value) for key, value in (plain | named).items()}
    except (ValueError, RecursionError):
        return {}


def compare_manifest(folder: RunFolder, progress: Progress) -> Found:
    """Compare every file with the manifest: changed ones by part, missing and additional ones by name."""
    found = Found()
    if not folder.file("report").is_dir():
        found.unchecked.append(
            "files that no record vouches for (reports, tensors, histories): no report was written yet; "
            f"`day0 report --run {folder.path}` hashes every file"
        )
        return found
    manifest = _read(folder, found)
    if manifest is None:
        return found
    present = dict(_files(folder.path))
    for entry in manifest.files:
        if entry.path not in present:
            found.bad(entry.path, "missing: it was there when the report was written")
            continue
        progress(f"hashing {entry.path}")
        found.checked["files by their hash in the report's manifest"] += 1
        _compare(entry, present.pop(entry.path), found)
    for name in present:
        found.bad(name, "additional: it was not there when the report was written")
    return found


def _read(folder: RunFolder, found: Found) -> Manifest | None:
    try:
        text = folder.read_text(FILE)
        if text is not None:
            return decode(Manifest, text, where=FILE, remake=f"day0 report --run {folder.path}").record
        found.bad(FILE, f"missing: no hashes of files; `day0 report --run {folder.path}` writes them")
    except Day0Error as error:
        found.bad(FILE, error.what, "body" if error.facts else "")
    return None


def _compare(entry: ManifestFile, path: Path, found: Found) -> None:
    now = _entry(entry.path, path)
    if (now.kind, now.sha256) == (entry.kind, entry.sha256):
        return
    if now.kind != entry.kind:
        found.bad(entry.path, f"was a {entry.kind} when the report was written, and is a {now.kind}")
        return
    names = sorted(
        name for name in entry.parts.keys() | now.parts.keys() if entry.parts.get(name) != now.parts.get(name)
    )
    # The body's own hash differs only because somebody wrote it anew; what changed is the body.
    what = f"not as the report saw it: {entry.sha256[:19]} then, {now.sha256[:19]} now"
    for name in names if now.parts else []:
        found.bad(entry.path, what, name)
    if not names or not now.parts:
        found.bad(entry.path, f"{what}, {entry.bytes:,} bytes then, {now.bytes:,} now")

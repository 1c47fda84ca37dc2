"""Read what a plugin carries and check every hash, before anything of it is used. Standard library only when loaded."""

from __future__ import annotations

import hashlib
import importlib
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["MANIFEST", "SCHEMA", "BundleError", "read_manifest"]

MANIFEST = "MANIFEST.json"
SCHEMA = "day0.export/1"


class BundleError(Exception):
    """What the plugin carries cannot be used: damaged, changed, or not for this environment."""


def read_manifest(folder: Path, engine_version: str) -> dict[str, Any]:
    """Return the manifest, once every file in it has the hash it says and the environment is the one it says.

    Raises BundleError with file and both hashes, or the distribution and both versions.
    """
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BundleError(f"{folder / MANIFEST} cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise BundleError(f"{folder / MANIFEST} is no manifest of schema {SCHEMA}")
    for name, wanted in found["files"].items():
        try:
            have = "sha256:" + hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            raise BundleError(f"{folder / name}, which the plugin carries, cannot be read: {error.strerror}") from None
        if have != wanted:
            raise BundleError(f"{folder / name} was changed after the export: {wanted[:19]} then, {have[:19]} now")
    _check_environment(found, engine_version)
    return found


def _check_environment(manifest: dict[str, Any], engine_version: str) -> None:
    for wanted in manifest["requires"]:
        name, _, number = wanted.partition("==")
        try:
            have = version(name)
        except PackageNotFoundError:
            raise BundleError(f"{wanted} is not installed beside the engine") from None
        if have != number:
            raise BundleError(f"the plugin was exported with {wanted}, and {name} {have} is installed")
    specifiers = importlib.import_module("packaging.specifiers")
    if not specifiers.SpecifierSet(manifest["tested"]).contains(engine_version, prereleases=True):
        raise BundleError(
            f"the plugin was tested with {manifest['engine']} {manifest['tested']}, and {engine_version} is installed"
        )

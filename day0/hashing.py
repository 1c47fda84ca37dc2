"""One way to hash things: SHA-256 over bytes or over canonical JSON."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

__all__ = ["hash_bytes", "hash_file", "hash_json"]


def hash_bytes(data: bytes) -> str:
    """Return `sha256:` and 64 hex digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def hash_json(value: object) -> str:
    """Hash a JSON value by its canonical text: sorted keys, no spaces, so formatting does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hash_bytes(text.encode())


def hash_file(path: Path) -> str:
    """Hash a file in pieces, so that a checkpoint shard does not have to fit in memory."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()

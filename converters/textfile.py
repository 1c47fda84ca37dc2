"""Small files from outside, read whole: of a size that is known before, and never a pipe."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from day0.errors import Day0Error

__all__ = ["MAX_BYTES", "read_json", "read_text", "size_of_file"]

MAX_BYTES = 256 << 20
MOST_LEVELS = 100
"""What is nested deeper than this is no config; Python itself would give up at a thousand."""


def size_of_file(path: Path) -> int:
    """Return its size. Raises OSError; Day0Error for a pipe or a device: to open one may wait for ever."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        what = "it is a folder" if stat.S_ISDIR(found.st_mode) else "it is a pipe or a device"
        raise Day0Error(str(path), f"{what}, and a file is needed", hint="put the file itself there")
    return found.st_size


def read_text(path: Path, *, hint: str) -> str:
    """Return a file of at most MAX_BYTES as text. Raises Day0Error for everything else."""
    try:
        size = size_of_file(path)
        if size > MAX_BYTES:
            raise Day0Error(str(path), f"{size:,} bytes are too many for it", hint=hint)
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise Day0Error(str(path), f"it is no text in UTF-8: byte {error.start:,} cannot be", hint=hint) from None
    except OSError as error:
        raise Day0Error(
            str(path), f"cannot be read: {error.strerror}", hint="is it there, and may you read it?"
        ) from None


def read_json(path: Path, *, hint: str) -> dict[str, Any]:
    """Return a JSON object that can be written again. Raises Day0Error for everything else."""
    text = read_text(path, hint=hint)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Day0Error(str(path), f"it is not JSON: {str(error)[:200]}", hint=hint) from None
    if not isinstance(document, dict):
        raise Day0Error(str(path), "it is no JSON object", hint=hint)
    if wrong := _unwritable(document, MOST_LEVELS):
        raise Day0Error(str(path), wrong, hint=hint)
    return document


def _unwritable(value: object, levels: int) -> str:
    """Say what could not be written again: half characters, which an escape can spell, and what is nested too deeply."""
    if levels == 0:
        return f"it is nested more than {MOST_LEVELS} levels deep"
    if isinstance(value, dict):
        parts: list[object] = [*value.keys(), *value.values()]
    elif isinstance(value, list):
        parts = value
    elif isinstance(value, str) and not value.isascii() and not _is_text(value):
        return f"{value[:60]!r} holds half a character"
    else:
        return ""
    return next((wrong for one in parts if (wrong := _unwritable(one, levels - 1))), "")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True

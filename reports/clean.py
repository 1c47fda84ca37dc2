"""Foreign text made harmless: names in records come from models and files that anybody may have written.

Every text of a report passes through here once; what a format gives a meaning to (`<`, `|`, `&`) is escaped by that
format's own renderer afterwards.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath

__all__ = ["LIMIT", "REFUSED", "clean", "path_below"]

LIMIT = 400
"""Characters of one text; the record holds all of it."""

REFUSED = "(refused: not a path below the run folder)"
"""What stands in the place of a path that leads elsewhere."""

_PLAIN_PATH = re.compile(r"(?:\w[\w.-]*/)*\w[\w.-]*", re.ASCII)
"""Most paths: letters, digits and what cannot lead anywhere else."""

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


def clean(value: object, *, limit: int = LIMIT) -> str:
    """Return one line of printable text, at most `limit` characters long, with the middle left out if need be.

    Whitespace of any kind becomes one space. Terminal escapes, NUL, bidirectional overrides, zero-width characters,
    lone surrogates and whatever else Unicode calls unprintable (so all that XML 1.0 forbids) becomes U+FFFD.
    """
    text = _shorten(" ".join(str(value).split()), limit)
    # Nearly every text is printable as a whole, and then nobody has to look at each of its characters.
    return text if text.isprintable() else "".join(char if char.isprintable() else _UNKNOWN for char in text)


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 3
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def path_below(value: str) -> str:
    """Return a path below the run folder as text, or a refusal for one that is absolute or leads out of it."""
    if len(value) <= LIMIT and _PLAIN_PATH.fullmatch(value):
        return value
    posix, windows = PurePosixPath(value), PureWindowsPath(value)
    if posix.is_absolute() or windows.anchor or ".." in posix.parts or ".." in windows.parts:
        return REFUSED
    return clean(value)

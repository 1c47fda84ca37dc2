"""Read a text file that may be hostile: too large, no file at all, or not text."""

from __future__ import annotations

from pathlib import Path

from day0.errors import Day0Error

__all__ = ["numbered_lines", "read_text"]


def read_text(path: Path, *, most: int, kind: str, hint: str) -> str:
    """Return the text of a file of at most `most` bytes, which should be `kind`, such as "a YAML file".

    Raises Day0Error: no such file, a folder, a device or a pipe, too large, not UTF-8 (with the byte), not readable.
    """
    try:
        if path.is_dir():
            raise Day0Error(str(path), f"this is a folder, not {kind}", hint="name a file in it")
        if path.exists() and not path.is_file():
            raise Day0Error(str(path), "this is a device or a pipe, not a file", hint="name a file")
        size = path.stat().st_size
        if size > most:
            raise Day0Error(str(path), f"the file has {size:,} bytes, more than {most:,}", hint=f"is it {kind} at all?")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise Day0Error(str(path), "there is no such file", hint="check the path") from None
    except UnicodeDecodeError as error:
        raise Day0Error(str(path), f"byte {error.start} is not UTF-8", hint=hint) from None
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise Day0Error(str(path), f"cannot be read: {reason}", hint="check path and permissions") from None


def numbered_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines that are not blank, counted from 1.

    Not by splitlines, which also splits at characters that JSON texts may hold.
    """
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]

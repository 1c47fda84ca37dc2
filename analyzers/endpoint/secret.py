"""The key of a server: given to the server alone, and hidden in every text that comes back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from day0.errors import Day0Error
from day0.records import Record

__all__ = ["HIDDEN", "Secret", "read_secret"]

HIDDEN = "[key]"
MAX_BYTES = 1 << 16
MIN_LENGTH = 4
"""A shorter one stands in every other word, and cannot be hidden."""

R = TypeVar("R", bound=Record)


class Secret:
    """A key, or none. Its text is in no representation, so that no message and no traceback shows it."""

    def __init__(self, value: str = "", shell: str = "") -> None:
        self._value = value
        self.shell = shell
        """What a shell puts in the key's place, such as `$(cat key.txt)`."""

    def __repr__(self) -> str:
        return "Secret()"

    def headers(self) -> dict[str, str]:
        """Return the header that carries the key."""
        return {"Authorization": f"Bearer {self._value}"} if self._value else {}

    def hide(self, text: str) -> str:
        """Return a text without the key."""
        return text.replace(self._value, HIDDEN) if self._value else text

    def hidden(self, record: R) -> R:
        """Return a record whose texts are without the key, wherever a server has put it."""
        return type(record).model_validate(self._plain(record.model_dump(mode="python"))) if self._value else record

    def _plain(self, value: object) -> object:
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, dict):
            return {self._plain(key): self._plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._plain(item) for item in value]
        return value


def read_secret(file: Path | None, variable: str | None, option: str = "--api-key-file") -> Secret:
    """Read a key from a file or from an environment variable; none without both.

    Raises Day0Error: both are given, nothing is there, or what is there is no key. No message shows what was read.
    """
    if file is not None and variable is not None:
        raise Day0Error(option, "there is a file and a variable, and one key", hint="give one of the two")
    if file is not None:
        import shlex

        return Secret(_checked(_read(file), str(file)), f"$(cat {shlex.quote(str(file))})")
    if variable is None:
        return Secret()
    if not variable.isidentifier() or not variable.isascii():
        raise Day0Error("--api-key-env", "this is no name of a variable", hint="give the name, not the key itself")
    if variable not in os.environ:
        raise Day0Error("--api-key-env", f"there is no variable {variable}", hint=f"export {variable} first")
    return Secret(_checked(os.environ[variable], variable), f"${variable}")


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise Day0Error(str(file), "the file is too large for a key", hint="write the key alone into a file")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Day0Error(str(file), "it is not UTF-8 text", hint="write the key alone into a file") from None
    except OSError as error:
        raise Day0Error(str(file), f"cannot be read: {error.strerror}", hint="check the path") from None


def _checked(text: str, where: str) -> str:
    key = text.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise Day0Error(where, "it holds characters that no key has", hint="write the key alone, on one line")
    if len(key) < MIN_LENGTH:
        what = f"it holds {len(key)} characters, which is no key"
        raise Day0Error(where, what, hint="leave the option away for a server that wants none")
    return key

"""Files that are no text files are refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from day0.errors import Day0Error
from day0.textfile import numbered_lines, read_text


def _read(path: Path, most: int = 100) -> str:
    return read_text(path, most=most, kind="a list of names", hint="write one name a line")


def test_text_is_read_without_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"\xef\xbb\xbfeins\n\n zwei\xe2\x80\xa8drei\n")
    assert numbered_lines(_read(path)) == [(1, "eins"), (3, " zwei\u2028drei")]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path.mkdir(), "this is a folder, not a list of names"),
        (os.mkfifo, "this is a device or a pipe"),
        (lambda path: path.write_bytes(b"a" * 101), "the file has 101 bytes, more than 100"),
        (lambda path: path.write_bytes(b"ab\xff"), "byte 2 is not UTF-8"),
        (lambda path: None, "there is no such file"),
    ],
    ids=["folder", "pipe", "large", "bytes", "none"],
)
def test_what_is_no_text_is_refused(tmp_path: Path, make: object, says: str) -> None:
    assert callable(make)
    make(tmp_path / "a")
    with pytest.raises(Day0Error, match=says):
        _read(tmp_path / "a")


def test_a_path_that_cannot_be_is_refused() -> None:
    with pytest.raises(Day0Error, match="cannot be read: embedded null byte"):
        _read(Path("a\0b"))

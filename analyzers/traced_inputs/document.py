"""A whole file: its lines, what each of them is, and a guard against files that are none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import NoReturn

from day0.analyzers.traced_inputs.grammar import Arguments, parse_arguments
from day0.analyzers.traced_inputs.tokens import MAX_LINE, Place
from day0.errors import Day0Error

__all__ = ["MAX_COUNT", "MAX_FILE_BYTES", "MAX_LINES", "Line", "parse_lines", "read_inputs"]

MAX_FILE_BYTES = 64 << 20
"""All 155 public files together have under 3 MB."""
MAX_LINES = 500_000
MAX_COUNT = 10**15
"""Calls on one line; a sum over all lines must stay a number that JSON readers keep exactly."""

_HEADER = re.compile(r"[ \t]*Operator:[ \t]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*){1,2}")
_CALL = re.compile(r"[ \t]*cnt:[ \t]*([0-9]+)[ \t]*,[ \t]*")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line. `text` is all of it, without its newline; blank lines and comments have neither `op` nor `call`."""

    number: int
    text: str
    op: str = ""
    """Name as it stands in the text, of a header and of the calls below it."""
    count: int = 0
    call: Arguments | None = None


def read_inputs(path: Path) -> str:
    """Read a file. Raises Day0Error: not there, no plain file, over 64 MiB, not UTF-8 (with the line)."""
    where = str(path)
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):
            raise Day0Error(where, "this is a folder, a device or a pipe", hint="name a text file with traced inputs")
        if status.st_size > MAX_FILE_BYTES:
            what = f"the file has {status.st_size >> 20:,} MiB, more than the {MAX_FILE_BYTES >> 20} that are read"
            raise Day0Error(where, what, hint="cut it into several files, one operator each")
        data = path.read_bytes()
        return data.decode("utf-8")
    except FileNotFoundError:
        raise Day0Error(where, "there is no such file", hint="give the path of a text with traced inputs") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        hint = "traced inputs are plain UTF-8 text"
        raise Day0Error(f"{where}:{line}:{column}", f"byte {error.start} is not UTF-8", hint=hint) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Day0Error(where, f"cannot be read: {reason}", hint="check its permissions") from None


def parse_lines(text: str, file: str) -> Iterator[Line]:
    """Yield every line of a text, the last one empty if the text ends with a newline.

    Joined by newlines the lines are the text again. Raises Day0Error with file, line and column.
    """
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        raise Day0Error(file, f"{len(lines):,} lines, more than {MAX_LINES:,}", hint="cut it into several files")
    op = ""
    for number, line in enumerate(lines, start=1):
        place = Place(file=file, line=number)
        if len(line) > MAX_LINE:
            place.fail(MAX_LINE, f"the line has {len(line):,} characters, more than {MAX_LINE:,}")
        body = line.removesuffix("\r")
        control = _CONTROL.search(body)
        if control:
            place.fail(control.start() + 1, f"the control character {control.group()!r} is no text")
        one = _parse(number, line, body, op, place)
        op = one.op or op
        yield one


def _parse(number: int, line: str, body: str, op: str, place: Place) -> Line:
    begin = 1 if number == 1 and body.startswith("\ufeff") else 0
    header = _HEADER.match(body, begin)
    if header:
        name = body[header.end() :].rstrip(" \t")
        if len(name) > 200 or not _NAME.fullmatch(name):
            hint = "for example aten.add.Tensor or aten.mm.default"
            place.fail(header.end() + 1, f"{name[:80]!r} is no operator with its overload", hint)
        return Line(number=number, text=line, op=name)
    call = _CALL.match(body, begin)
    if call:
        if not op:
            place.fail(
                1, "a call stands before the first operator", "begin with a line such as Operator: aten.mm.default"
            )
        return Line(
            number=number, text=line, op=op, count=_count(call, place), call=_arguments(body, call.end(), place)
        )
    rest = body[begin:].strip(" \t")
    if rest and not rest.startswith("#"):
        _explain(body, begin, place)
    return Line(number=number, text=line)


def _count(call: re.Match[str], place: Place) -> int:
    digits = call[1].lstrip("0") or "0"
    if len(digits) > 16 or int(digits) > MAX_COUNT:
        place.fail(call.start(1) + 1, f"a count of {digits[:20]}… calls, more than {MAX_COUNT:,}")
    return int(digits)


def _arguments(body: str, start: int, place: Place) -> Arguments:
    """Read the arguments; early writers put all of them into quotes, which every public reader takes off."""
    end = body.rstrip(" \t")
    if body[start : start + 1] in ("'", '"') and len(end) > start + 1 and end[-1] == body[start]:
        return parse_arguments(end[:-1], start + 1, place)
    return parse_arguments(body, start, place)


def _explain(body: str, begin: int, place: Place) -> NoReturn:
    column = len(body) - len(body[begin:].lstrip(" \t")) + 1
    if body[begin:].lstrip(" \t").startswith("cnt"):
        place.fail(column, "a call is 'cnt: NUMBER, ((…), {…})'", "for example cnt: 3, ((T([2, 3], f16),), {})")
    hint = "lines are 'Operator: NAME', 'cnt: NUMBER, ((…), {…})', blank, or a comment after #"
    place.fail(column, f"{body[column - 1 : column + 39]!r} is neither an operator nor a call", hint)

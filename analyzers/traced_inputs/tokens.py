"""One line of text to tokens, with every limit that keeps a hostile file cheap. Errors carry file, line and column."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NoReturn

from day0.errors import Day0Error

__all__ = ["MAX_LINE", "MAX_TOKENS", "Place", "Token", "tokenize", "unquote"]

MAX_LINE = 1 << 20
"""Characters of a line; the longest public one has some 20,000."""
MAX_TOKENS = 200_000
"""Tokens of a line."""
MAX_TOKEN = 4096
"""Characters of a number, a name or a quoted text."""

TokenKind = Literal["number", "name", "string", "mark", "end"]

_TOKEN = re.compile(
    r"(?P<space>[ \t]+)"
    r"|(?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?[jJ]?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)"
    r"""|(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"|(?P<mark>[()\[\]{},:=+-])"
)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where in which file, for messages."""

    file: str
    line: int

    def fail(self, column: int, what: str, hint: str = "correct that line and import again") -> NoReturn:
        """Raise Day0Error for a column, counted from 1."""
        raise Day0Error(f"{self.file}:{self.line}:{column}", what, hint=hint)


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """A piece of a line; `column` counts from 1."""

    kind: TokenKind
    text: str
    column: int

    def __str__(self) -> str:
        short = self.text if len(self.text) <= 40 else self.text[:40] + "…"
        return "the end of the line" if self.kind == "end" else repr(short)


def tokenize(text: str, start: int, place: Place) -> list[Token]:
    """Cut `text` from index `start` into tokens; the last one is the end. Raises Day0Error for what is no token."""
    tokens: list[Token] = []
    at = start
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            _refuse(text, at, place)
        if found.lastgroup != "space":
            tokens.append(Token(kind=_KINDS[found.lastgroup], text=found.group(), column=at + 1))
            if len(found.group()) > MAX_TOKEN:
                place.fail(at + 1, f"a {found.lastgroup} of {len(found.group()):,} characters, more than {MAX_TOKEN:,}")
            if len(tokens) > MAX_TOKENS:
                place.fail(at + 1, f"the line has more than {MAX_TOKENS:,} parts")
        at = found.end()
    tokens.append(Token(kind="end", text="", column=len(text) + 1))
    return tokens


_KINDS: dict[str, TokenKind] = {"number": "number", "name": "name", "string": "string", "mark": "mark"}


def _refuse(text: str, at: int, place: Place) -> NoReturn:
    if text[at] in "'\"":
        place.fail(at + 1, "the quoted text does not end on this line")
    place.fail(at + 1, f"{text[at]!r} has no meaning here")


def unquote(token: Token, place: Place) -> str:
    """Return what a quoted text says. Raises Day0Error for an escape that is not known."""

    def replace(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        if code is None:
            if found[4] not in _PLAIN_ESCAPES:
                place.fail(token.column + 1 + found.start(), f"the escape {found.group()!r} is not known")
            return _PLAIN_ESCAPES[found[4]]
        number = int(code, 16)
        # Half of a pair is no character: no file of ours could hold it.
        if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
            place.fail(token.column + 1 + found.start(), f"{found.group()!r} is no character")
        return chr(number)

    return _ESCAPE.sub(replace, token.text[1:-1])

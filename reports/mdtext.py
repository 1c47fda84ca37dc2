"""Text for Markdown: escaped so that it shows as it is, in GitHub's dialect and to the eye in a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from unicodedata import east_asian_width

__all__ = ["code", "figure", "link", "prose", "table_lines"]

_SPECIAL = re.compile(r"[\\`*\[|~$&<]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
"""What starts markup within a line; an underscore inside a word does not."""

_ENTITIES = {"<": "&lt;", "&": "&amp;"}
"""Not every dialect takes a backslash before these for an escape, and then a name would be a tag."""

_LINE_START = re.compile(r"^()([#+=>-])|^(\d+)([.)])(?=\s|$)")
"""What starts a heading, a list, a quotation or a rule."""

_TOKEN = re.compile(r"[^\s|`]*(?:::|@|//|www\.|#\d)[^\s|`]*|\w*\[[\d, ]*\]")
"""Operators, mentions, addresses, issue numbers and shapes: in code they cannot become links or notify anybody."""

_TRAILING = ".,;:)"


def prose(text: str) -> str:
    """Escape one line of text; words that a forge would turn into links become code."""
    parts, end = [], 0
    for match in _TOKEN.finditer(text):
        word = match.group().rstrip(_TRAILING)
        begin = match.start() + len(word) - len(word.lstrip("("))
        parts += [_escape(text[end:begin]), code(word.lstrip("("))]
        end = match.start() + len(word)
    parts.append(_escape(text[end:]))
    return _LINE_START.sub(r"\1\3\\\2\4", "".join(parts))


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda found: _ENTITIES.get(found.group(), f"\\{found.group()}"), text)


def figure(text: str) -> str:
    """Return a number as it stands, `<0.1 %` too."""
    return "".join(_ENTITIES.get(char, char) for char in text)


def link(label: str, text: str, href: str) -> str:
    """Return a link to an address that is encoded already; its text is code, so that nothing in it is markup."""
    return f"{prose(label)}: [{code(text)}]({href})"


def code(text: str, *, in_table: bool = False) -> str:
    """Return a code span with a fence longer than any run of backticks in the text; empty for empty text."""
    if not text:
        return ""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    body = text.replace("|", "\\|") if in_table else text
    return f"{fence}{pad}{body}{pad}{fence}"


def table_lines(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Return a table whose columns line up raw, too; `right` says which columns hold numbers."""
    widths = [max(3, *(_width(row[n]) for row in (heads, *rows))) for n in range(len(heads))]

    def line(row: Sequence[str]) -> str:
        cells = [_pad(text, width, to_right) for text, width, to_right in zip(row, widths, right, strict=True)]
        return f"| {' | '.join(cells)} |"

    rule = [f"{'-' * (width - 1)}{':' if to_right else '-'}" for width, to_right in zip(widths, right, strict=True)]
    return [line(heads), line(rule), *(line(row) for row in rows)]


def _pad(text: str, width: int, to_right: bool) -> str:
    space = " " * (width - _width(text))
    return f"{space}{text}" if to_right else f"{text}{space}"


def _width(text: str) -> int:
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)

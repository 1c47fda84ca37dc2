"""The rows that a page carries as data: what its tables leave out, for the page's script to search and to show.

Cells are numbers into one list of texts, so that a text that stands in many rows stands in the page once. The whole is
JSON, packed by gzip and written in base64: of 100,000 signatures that is a tenth of the size, and a browser that only
opens the page reads past it. No text in it can end the element that holds it.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from day0.reports.links import Link
from day0.reports.tables import Cell, Table

__all__ = ["BUDGET", "MOST", "PageRows"]

BUDGET = 40_000_000
"""Characters of data in one page before it is packed, about. The rest stays in the records, and the page says how much."""

MOST = 12_000_000
"""Characters of packed data in one page. Tables that make it longer stay out, the largest first."""

REFERENCE = 6
"""Characters that a number of a text takes, about."""

Coded = int | list[int | list[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """Rows of one table, and how many more there are that have no room."""

    rows: list[list[Coded]]
    over: int


@dataclass(kw_only=True)
class PageRows:
    """Collects the rows of one page, as long as there is room."""

    budget: int = BUDGET
    words: dict[str, int] = field(default_factory=dict)
    tables: dict[str, _Rows] = field(default_factory=dict)

    def add(self, table: Table) -> None:
        """Take the rows that a table leaves out, but no more than there is room for."""
        if not table.left:
            return
        rows = list(self._taken(table.unseen()))
        self.tables[table.name] = _Rows(rows=rows, over=table.left - len(rows))

    def _taken(self, rows: Iterable[tuple[Cell, ...]]) -> Iterator[list[Coded]]:
        for row in rows:
            if self.budget <= 0:
                return
            yield [self._coded(cell) for cell in row]

    def _coded(self, cell: Cell) -> Coded:
        if isinstance(cell, str):
            return self._word(cell)
        return [
            [self._word(one.label), self._word(one.href)] if isinstance(one, Link) else self._word(one) for one in cell
        ]

    def _word(self, text: str) -> int:
        number = self.words.get(text)
        if number is None:
            number = self.words[text] = len(self.words)
            self.budget -= len(text) + 3
        self.budget -= REFERENCE
        return number

    def text(self) -> str:
        """Return the packed data as base64; what does not pack well is left out, and counted as left out."""
        packed = self._packed()
        while len(packed) > MOST:
            name = max(self.tables, key=lambda one: len(self.tables[one].rows))
            table = self.tables[name]
            if not table.rows:
                return ""
            self.tables[name] = replace(table, rows=[], over=table.over + len(table.rows))
            used = {word for one in self.tables.values() for word in _words_of(one.rows)}
            # Numbers of texts stay what they are; a text that nobody shows any more becomes an empty one.
            self.words = {text if number in used else f"\0{number}": number for text, number in self.words.items()}
            packed = self._packed()
        return packed

    def _packed(self) -> str:
        words = ["" if text.startswith("\0") else text for text in self.words]
        tables = {name: {"rows": one.rows, "over": one.over} for name, one in self.tables.items()}
        text = json.dumps({"words": words, "tables": tables}, ensure_ascii=False, separators=(",", ":"))
        # Without the time of packing, which gzip would note: the same records give the same page.
        return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def _words_of(rows: list[list[Coded]]) -> Iterator[int]:
    for row in rows:
        for cell in row:
            for item in [cell] if isinstance(cell, int) else cell:
                yield from [item] if isinstance(item, int) else item

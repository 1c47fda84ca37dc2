"""The rows that a page carries as data: what its tables leave out, for the page's script to search and to show.

Cells are numbers into one list of texts, so that a text that stands in many rows stands in the page once. The whole is
JSON, in which `<`, `>` and `&` are written as escapes: no text in it can end the element that holds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from day0.reports.links import Link
from day0.reports.tables import Cell, Table

__all__ = ["BUDGET", "PageRows"]

BUDGET = 11_000_000
"""Characters of data in one page. What is beyond stays in the records, and the page says how many rows that is."""

Coded = int | list[int | list[int]]

_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


@dataclass(kw_only=True)
class PageRows:
    """Collects the rows of one page, as long as there is room."""

    budget: int = BUDGET
    words: dict[str, int] = field(default_factory=dict)
    tables: dict[str, dict[str, object]] = field(default_factory=dict)

    def add(self, table: Table) -> None:
        """Take the rows that a table leaves out, but no more than there is room for."""
        if not table.left:
            return
        rows = list(self._taken(table.unseen()))
        self.tables[table.name] = {"rows": rows, "over": table.left - len(rows), "file": table.file}

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
            self.budget -= len(text.encode()) + 3
        self.budget -= len(str(number)) + 1
        return number

    def text(self) -> str:
        """Return the JSON, safe within a script element."""
        whole = {"words": list(self.words), "tables": self.tables}
        return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPES)

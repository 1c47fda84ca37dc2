"""One trace over several devices: what each says of every operator and tuple of dtypes."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Sequence

from day0.records import Inventory, InventoryEntry, Record, Verdict

__all__ = ["LADDER", "Matrix", "MatrixCell", "MatrixRow", "matrix_csv", "support_matrix"]

LADDER: tuple[Verdict, ...] = (
    "native",
    "out_wrapper",
    "decomposes",
    "replaced",
    "decomposes_with_sync",
    "cpu_fallback",
    "leaf_missing",
    "unknown",
    "missing",
    "crashes",
)
"""Verdicts from the best to the worst."""


class MatrixCell(Record):
    """What one device says of one operator and tuple of dtypes."""

    verdict: Verdict
    """The worst of its signatures, before the registry is asked."""
    gaps: int
    """Signatures that the device cannot run by itself."""
    share: float
    """Share of the roofline time on that device."""
    open: int
    """Those of them for which the registry has nothing either."""


class MatrixRow(Record):
    """One operator overload with the dtypes that it was given, each named once."""

    op: str
    dtypes: tuple[str, ...]
    signatures: int
    calls: int
    cells: tuple[MatrixCell, ...]
    """In the order of the devices."""


class Matrix(Record):
    """The whole table; what separates the devices stands first, then what costs most."""

    model: str
    devices: tuple[str, ...]
    rows: tuple[MatrixRow, ...]
    covered: tuple[float, ...]
    """Share of the roofline time that each device covers by itself."""
    covered_with_registry: tuple[float, ...]
    """The same, with what the registry has."""


def support_matrix(inventories: Sequence[Inventory]) -> Matrix:
    """Join inventories of one trace on several devices."""
    groups = [_grouped(one) for one in inventories]
    rows = [_row(key, [group[key] for group in groups]) for key in groups[0]]
    return Matrix(
        model=inventories[0].model,
        devices=tuple(one.device for one in inventories),
        rows=tuple(sorted(rows, key=_order)),
        covered=tuple(_covered(one, registry=False) for one in inventories),
        covered_with_registry=tuple(_covered(one, registry=True) for one in inventories),
    )


_Key = tuple[str, tuple[str, ...]]


def _grouped(inventory: Inventory) -> dict[_Key, list[InventoryEntry]]:
    groups: dict[_Key, list[InventoryEntry]] = defaultdict(list)
    for entry in inventory.entries:
        groups[(entry.op, tuple(dict.fromkeys(entry.dtypes)))].append(entry)
    return groups


def _row(key: _Key, members: Sequence[Sequence[InventoryEntry]]) -> MatrixRow:
    return MatrixRow(
        op=key[0],
        dtypes=key[1],
        signatures=len(members[0]),
        calls=sum(entry.calls for entry in members[0]),
        cells=tuple(_cell(entries) for entries in members),
    )


def _cell(entries: Sequence[InventoryEntry]) -> MatrixCell:
    gaps = [entry for entry in entries if entry.is_gap]
    return MatrixCell(
        verdict=max((entry.device_verdict for entry in entries), key=LADDER.index),
        gaps=len(gaps),
        share=sum(entry.share for entry in entries),
        open=sum(entry.verdict != "replaced" for entry in gaps),
    )


def _order(row: MatrixRow) -> tuple[bool, float, str, tuple[str, ...]]:
    lacking = [cell.share for cell in row.cells if cell.gaps]
    return (not lacking, -max(lacking or [cell.share for cell in row.cells]), row.op, row.dtypes)


def _covered(inventory: Inventory, *, registry: bool) -> float:
    open_ = (e for e in inventory.entries if e.is_gap and not (registry and e.verdict == "replaced"))
    return max(0.0, 1.0 - sum(entry.share for entry in open_))


def matrix_csv(matrix: Matrix) -> str:
    """Return the table as CSV: for each device the verdict, how many signatures are gaps, and the share of time."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = [f"{device}{part}" for device in matrix.devices for part in ("", " gaps", " share")]
    writer.writerow([_cell_text(name) for name in ("operator", "dtypes", "signatures", "calls", *columns)])
    for row in matrix.rows:
        cells = [text for c in row.cells for text in (c.verdict, str(c.gaps), f"{c.share:.6f}")]
        writer.writerow([row.op, " ".join(row.dtypes), row.signatures, row.calls, *cells])
    cells_of = list(zip(*(row.cells for row in matrix.rows), strict=True))
    for name, values, gaps in (
        ("covered", matrix.covered, [sum(cell.gaps for cell in cells) for cells in cells_of]),
        (
            "covered with registry",
            matrix.covered_with_registry,
            [sum(cell.open for cell in cells) for cells in cells_of],
        ),
    ):
        ends = [text for gap, value in zip(gaps, values, strict=True) for text in ("", str(gap), f"{value:.6f}")]
        writer.writerow([name, "", sum(r.signatures for r in matrix.rows), sum(r.calls for r in matrix.rows), *ends])
    return out.getvalue()


def _cell_text(text: str) -> str:
    """Keep a spreadsheet from taking the name of a device for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text

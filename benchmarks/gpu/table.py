"""The page of a device's figures from its record, and the record from several runs.

`python benchmarks/gpu/table.py docs/figures/h200.json docs/h200.md [--merge kernels.json model.json sparse.log ...]`
writes the tables between the marks of the page, and the charts beside the record. `--check` writes nothing, and ends
with 1 where page or charts say something else than the record.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from os.path import relpath
from pathlib import Path
from typing import Any

from charts import CHARTS, mark_of, write_charts
from figures import Record, merge, read_figures, read_part
from page_tables import tables_of

from day0.errors import Day0Error

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def main() -> int:
    """Do what the command line asks for; 2 for what the user can repair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="JSON or output of the benchmarks")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    try:
        return check(options.record, options.page) if options.check else write(options)
    except Day0Error as error:
        print(error, file=sys.stderr)
        return 2


def write(options: argparse.Namespace) -> int:
    """Merge, then write record, charts and page."""
    record = read_figures(options.record) if options.record.exists() else None
    if options.merge:
        record = merge(record, [(str(path), read_part(path)) for path in options.merge])
        options.record.parent.mkdir(parents=True, exist_ok=True)
        part = options.record.with_suffix(".part")
        part.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        part.replace(options.record)
    record = read_figures(options.record)
    write_charts(record, options.record)
    options.page.write_text(page_of(options.page, record, options.record), encoding="utf-8")
    return 0


def check(record_path: Path, page: Path) -> int:
    """Say what differs, and return 1 if something does."""
    record = read_figures(record_path)
    wrong = [] if page.read_text(encoding="utf-8") == page_of(page, record, record_path) else [str(page)]
    for name in CHARTS:
        chart = record_path.with_name(f"{record_path.stem}-{name}.svg")
        wanted = mark_of(name, record)
        if wanted and not (chart.is_file() and chart.read_text(encoding="utf-8").startswith(wanted)):
            wrong.append(str(chart))
    for path in wrong:
        print(f"{path} says something else than {record_path}: run {Path(__file__).name} again")
    return int(bool(wrong))


def page_of(page: Path, record: Record, record_path: Path) -> str:
    """Return the page with the tables of the record between its marks. Raises Day0Error for a page without marks."""
    text = page.read_text(encoding="utf-8") if page.is_file() else f"{BEGIN}\n{END}\n"
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise Day0Error(str(page), f"it has no lines {BEGIN} and {END}", hint="put them where the tables belong")
    return f"{before}{BEGIN}\n{tables_of(record, charts_beside(page, record, record_path))}\n{END}{after}"


def charts_beside(page: Path, record: Mapping[str, Any], record_path: Path) -> dict[str, str]:
    """Return the charts that there are, as the page names them."""
    folder = Path(relpath(record_path.parent.resolve(), page.parent.resolve()))
    return {name: f"{folder.as_posix()}/{record_path.stem}-{name}.svg" for name in CHARTS if mark_of(name, record)}


if __name__ == "__main__":
    sys.exit(main())

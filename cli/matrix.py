"""`day0 matrix`: one trace over several devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from day0.cli.failures import clean
from day0.cli.rundir import RunFolder, write_atomically
from day0.cli.talk import Talk
from day0.errors import Day0Error, ExitCode
from day0.records import Trace

if TYPE_CHECKING:
    from day0.analyzers.matrix import Matrix, MatrixCell
    from day0.records import Inventory

__all__ = ["matrix"]

ROWS = 30
"""Rows on the terminal; the CSV holds all of them."""
WIDE = 110
"""Columns from which there is room for shares."""
COLOURS = {
    "native": "green",
    "out_wrapper": "green",
    "decomposes": "green",
    "decomposes_with_sync": "yellow",
    "cpu_fallback": "yellow",
    "unknown": "yellow",
}


def matrix(*, run: Path, devices: list[str], load: list[Path], csv: Path | None, json: bool) -> int:
    """Take an inventory for each device, without writing it, and show all of them side by side."""
    from day0.analyzers.matrix import matrix_csv, support_matrix

    _refuse(devices, csv)
    talk, folder = Talk(as_json=json), RunFolder(run)
    trace = folder.need(Trace).record
    with talk.busy("matrix"):
        found = support_matrix(_inventories(talk, trace, folder, devices, load))
    _show(talk, found)
    if csv is not None:
        write_atomically(csv, matrix_csv(found))
        talk.out.print(f"\ntable: {escape(clean(str(csv)))}", soft_wrap=True)
    if json:
        print(found.model_dump_json(indent=1))
    return int(ExitCode.OK)


def _refuse(devices: list[str], csv: Path | None) -> None:
    twice = sorted({name for name in devices if devices.count(name) > 1})
    if twice:
        raise Day0Error("--device", f"'{twice[0]}' was named twice", hint="name each device once")
    if csv is None:
        return
    if csv.suffix != ".csv":
        raise Day0Error(
            f"--csv {csv}", "the name does not end in .csv", hint="name it so, and no record is overwritten"
        )
    if not csv.absolute().parent.is_dir():
        raise Day0Error(f"--csv {csv}", f"there is no folder {csv.absolute().parent}", hint="make it first")


def _inventories(talk: Talk, trace: Trace, folder: RunFolder, devices: list[str], load: list[Path]) -> list[Inventory]:
    from day0.analyzers.inventory import take_inventory
    from day0.devices.profile import load_profile
    from day0.playbook import RegisterPlan
    from day0.reference_ops.torch_ops import register_operators
    from day0.registry.collect import collect
    from day0.registry.lock import without_fallbacks
    from day0.registry.namespaces import load_parents, search_path

    register_operators()
    profiles = [load_profile(name) for name in devices]  # all of them first: a misspelt one costs no time
    names = [profile.name for profile in profiles]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Day0Error(
            "--device", f"two of the profiles are named '{twice}'", hint="give one of them another `name:` in its file"
        )
    plan = folder.read_plan()
    choices = plan.register_ if plan is not None else RegisterPlan()
    files = tuple(load) or tuple(Path(name) for name in choices.load)
    known = without_fallbacks(collect(files, without=choices.without), choices)
    namespaces = search_path(choices.namespace, load_parents(files, without=choices.without))
    made = []
    for number, profile in enumerate(profiles):
        talk.progress(f"inventory for {profile.name}", number, len(profiles))
        made.append(take_inventory(trace, profile, known, namespaces=namespaces))
    return made


def _show(talk: Talk, found: Matrix) -> None:
    talk.out.print(
        Text(f"{clean(found.model)}: {len(found.rows)} operators with dtypes on {len(found.devices)} devices\n")
    )
    wide = talk.out.width >= WIDE
    table = Table(box=None, pad_edge=False, header_style="bold", show_footer=True, padding=(0, 2, 0, 0))
    table.add_column("operator", "by itself\nwith registry", no_wrap=True, overflow="ellipsis", min_width=20)
    table.add_column("dtypes", no_wrap=True, overflow="ellipsis", max_width=24 if wide else 8)
    table.add_column("calls", justify="right", no_wrap=True, min_width=6)
    for name, alone, both in zip(found.devices, found.covered, found.covered_with_registry, strict=True):
        table.add_column(escape(clean(name)), f"{alone:.1%}\n{both:.1%}", no_wrap=True, min_width=9)
    telling = [row for row in found.rows if any(cell.gaps for cell in row.cells)]
    for row in telling[:ROWS]:
        dtypes = " ".join(row.dtypes if wide else map(_short, row.dtypes))
        cells = (_cell(cell, share=wide) for cell in row.cells)
        table.add_row(escape(clean(row.op)), dtypes, f"{row.calls:,}", *cells)
    talk.out.print(table)
    more = len(telling) - ROWS
    if more > 0:
        talk.say(f"and {more} more with gaps; --csv FILE holds all of them")
    rest = len(found.rows) - len(telling)
    talk.say(f"[dim]{rest} that every device has are not shown; + where the registry has something[/dim]")


def _short(dtype: str) -> str:
    for name, short in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i")):
        if dtype.startswith(name):
            return short + dtype.removeprefix(name)
    return dtype


def _cell(cell: MatrixCell, *, share: bool) -> Text:
    text = Text(cell.verdict, style=COLOURS.get(cell.verdict, "red"))
    if cell.gaps and share:
        text.append(f" {cell.share:.1%}", style="default")
    if cell.gaps and not cell.open:
        text.append(" +", style="green")
    return text

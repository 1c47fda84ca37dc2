"""The first screen of an inventory: what is missing, what it costs, what to do first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from day0.cli.failures import clean
from day0.cli.talk import Talk
from day0.records import Inventory, InventoryBlock, InventoryEntry, Replacement

__all__ = ["inventory", "seconds_text"]

GAPS = 6
EXPLAINED = 3
"""Gaps whose reasons are given whole; those of the others are cut at the end of the line."""
BLOCKS = 8
FUSIONS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gap:
    """All signatures of one operator with one verdict."""

    op: str
    entries: tuple[InventoryEntry, ...]
    share: float
    calls: int


def inventory(talk: Talk, value: Inventory) -> None:
    """Show an inventory on one screen."""
    gaps = _gaps(value)
    talk.say("")
    talk.out.print(_headline(value, gaps))
    waits = [one for one in gaps if not one.entries[0].is_gap]
    lacking = [one for one in gaps if one.entries[0].is_gap]
    _list(talk, value, "missing, dearest first", lacking)
    _list(talk, value, "runs, but the host waits", waits)
    blocks = [one for one in value.blocks if one.kind == "block"]
    fusions = [one for one in value.blocks if one.kind == "fusion" and one.bytes_saved]
    _blocks(talk, "blocks: one replacement each", blocks, BLOCKS)
    _blocks(talk, "fusions of neighbours", sorted(fusions, key=lambda one: -one.saved), FUSIONS)
    _first(talk, lacking, blocks)


def _gaps(value: Inventory) -> list[_Gap]:
    groups: dict[tuple[str, str], list[InventoryEntry]] = defaultdict(list)
    for entry in value.entries:
        if entry.is_gap or entry.device_verdict == "decomposes_with_sync":
            groups[(entry.op, entry.device_verdict)].append(entry)
    found = [
        _Gap(
            op=op,
            entries=tuple(sorted(members, key=lambda one: -one.share)),
            share=sum(one.share for one in members),
            calls=sum(one.calls for one in members),
        )
        for (op, _), members in groups.items()
    ]
    return sorted(found, key=lambda one: (-one.share, -one.calls, one.op))


def _headline(value: Inventory, gaps: Sequence[_Gap]) -> Text:
    lacking = [one for one in gaps if one.entries[0].is_gap]
    operators, calls = len({entry.op for entry in value.entries}), sum(entry.calls for entry in value.entries)
    text = Text(f"{clean(value.model)} on {clean(value.device)}: ", style="bold")
    if not lacking:
        text.append("the device has everything that the model calls", style="green")
    else:
        share, count = sum(one.share for one in lacking), sum(one.calls for one in lacking)
        names = len({one.op for one in lacking})
        verb = "is" if names == 1 else "are"
        text.append(f"{names} of {operators} operators {verb} missing", style="red")
        text.append(
            f", {share:.1%} of the roofline time ({seconds_text(share * value.roofline_seconds)} of "
            f"{seconds_text(value.roofline_seconds)}), {count:,} of {calls:,} calls",
            style="not bold",
        )
    claimed = {entry.evidence for entry in value.entries if entry.is_gap}
    if "claimed" in claimed:
        text.append("\nfrom what is claimed of the device, not from what was seen on it", style="not bold dim")
    return text


def seconds_text(seconds: float) -> str:
    """Return a time with three digits: `1.21 s`, `636 ms`, `12.3 µs`."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs"), (1e9, "ns")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 1000 else f"{seconds * factor:,.0f} {unit}"
    return "0"


def _list(talk: Talk, value: Inventory, title: str, gaps: Sequence[_Gap]) -> None:
    if not gaps:
        return
    talk.say(f"\n[bold]{title}[/bold]")
    for number, gap in enumerate(gaps[:GAPS], start=1):
        talk.out.print(_gap_line(number, gap, value.roofline_seconds), no_wrap=True, overflow="ellipsis")
        for line in _advice(gap):
            if number <= EXPLAINED:
                talk.out.print(Padding(line, (0, 0, 0, 6)))
            else:
                talk.out.print(Padding(line, (0, 0, 0, 6)), no_wrap=True, overflow="ellipsis")
    if len(gaps) > GAPS:
        rest = gaps[GAPS:]
        names = ", ".join(dict.fromkeys(one.op for one in rest))
        text = f"    and {len(rest)} more, {sum(one.share for one in rest):.1%}: {clean(names)}"
        talk.out.print(Text(text, style="dim"), no_wrap=True, overflow="ellipsis")


def _gap_line(number: int, gap: _Gap, seconds: float) -> Text:
    first = gap.entries[0]
    dtypes = ", ".join(dict.fromkeys(dtype for entry in gap.entries for dtype in entry.dtypes[:1]))
    text = Text(f"{number:3}  ")
    text.append(clean(gap.op), style="bold")
    text.append(f" {dtypes}  ", style="dim")
    text.append(f"{gap.share:.1%}", style="bold red" if gap.share >= 0.05 else "bold")
    text.append(f"  {seconds_text(gap.share * seconds)}  {gap.calls:,} calls  ")
    text.append(first.device_verdict, style="yellow")
    if first.effort is not None:
        text.append(f"  {first.effort.replace('_', '/')}", style="cyan")
    return text


def _advice(gap: _Gap) -> list[Text]:
    """What to do about it, then why it is a gap."""
    first = gap.entries[0]
    ways = [one for one in first.replacements if one.kind != "cpu_fallback"]
    reason = first.reason.partition(f"; {first.options[0]} can stand in")[0] if first.options else first.reason
    do = Text("do: ", style="green")
    if ways:
        do.append(f"take {_way_text(ways[0])}", style="default")
    elif first.is_gap:
        do.append("write it; until then it runs on the CPU with transfers", style="default")
    else:
        do.append("replace it where graphs are captured", style="default")
    return [do, Text(f"why: {clean(reason)}", style="dim")]


def _way_text(way: Replacement) -> str:
    name = clean(way.name).rpartition(" ")[2]
    if way.seconds is None:
        return f"{name} ({way.kind.replace('_', ' ')}; cost not known: {clean(way.note)})"
    return f"{name} ({way.kind.replace('_', ' ')}, {seconds_text(way.seconds)} on paper for this shape)"


def _blocks(talk: Talk, title: str, blocks: Sequence[InventoryBlock], most: int) -> None:
    if not blocks:
        return
    talk.say("")
    wide = talk.out.width >= 110
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(title, no_wrap=True, overflow="ellipsis", ratio=3, min_width=24)
    for name in ("sites", "share", "saves ≤"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("launches", justify="right", no_wrap=True)
    table.add_column("closes / by what" if wide else "by what", no_wrap=True, overflow="ellipsis", ratio=4)
    for one in blocks[:most]:
        cells = [_block_name(one), f"{one.sites:,}", f"{one.share:.1%}", f"{one.saved:.1%}" if one.saved else ""]
        cells += [f"{one.launches:,}"] if wide else []
        table.add_row(*cells, _block_todo(one))
    talk.out.print(table)
    if len(blocks) > most:
        rest = ", ".join(one.name for one in blocks[most:])
        talk.out.print(Text(f"and {rest}", style="dim"), no_wrap=True, overflow="ellipsis")


def _block_name(one: InventoryBlock) -> Text:
    text = Text(one.name)
    if one.recognised == "pattern" and one.kind == "block":
        text.append(" (pattern)", style="dim")
    return text


def _block_todo(one: InventoryBlock) -> Text:
    text = Text()
    if one.gaps:
        text.append(f"closes {', '.join(clean(gap).removeprefix('aten::') for gap in one.gaps)}; ", style="red")
    if one.options:
        text.append(_short(one.options))
    elif one.operators:
        text.append(f"{one.operators[0]}: none here yet", style="dim")
    else:
        text.append("no operator of ours", style="dim")
    return text


def _short(options: Iterable[str]) -> str:
    """`day0::rope@1 base:reference==1` is shown as `day0::rope base:reference`."""
    operator, _, rest = clean(next(iter(options))).partition(" ")
    return f"{operator.partition('@')[0]} {rest.partition('==')[0]}"


def _first(talk: Talk, lacking: Sequence[_Gap], blocks: Sequence[InventoryBlock]) -> None:
    """The one thing to begin with, and the command for it."""
    if not lacking:
        return
    first = lacking[0]
    around = [one for one in blocks if first.op in one.gaps]
    text = Text("first: ", style="bold green")
    text.append(f"close {clean(first.op)}", style="bold")
    if around:
        block = around[0]
        text.append(f", or all of {block.name} at {block.sites} sites ({block.share:.1%}) in one kernel", style="default")
    elif first.entries[0].options:
        text.append(f" with {escape(clean(first.entries[0].options[0]))}", style="default")
    talk.say("")
    talk.out.print(text)
    talk.say("next:  [bold]day0 register[/bold] locks what there is; with [bold]--with FILE[/bold] what you write")

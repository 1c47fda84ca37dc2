"""The first screen of an inventory: what is missing, what it costs, what to do first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.text import Text

from day0.cli.failures import clean
from day0.cli.talk import Talk
from day0.records import Inventory, InventoryBlock, InventoryEntry

__all__ = ["inventory", "seconds_text"]

GAPS = 6
EXPLAINED = 3
"""Gaps whose reasons are given whole; those of the others are cut at the end of the line."""
BLOCKS = 8
FUSIONS = 4
INDENT = 27
"""Where operators begin in the list of gaps."""
WIDE = 110
"""Columns from which there is room for more figures."""


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
    _list(talk, value, "gap, dearest first", lacking)
    _list(talk, value, "it runs, but the host waits", waits)
    blocks = [one for one in value.blocks if one.kind == "block"]
    fusions = [one for one in value.blocks if one.kind == "fusion" and one.bytes_saved]
    _blocks(talk, "block, for one replacement", blocks, BLOCKS)
    _blocks(talk, "fusion of neighbours", sorted(fusions, key=lambda one: -one.saved), FUSIONS)
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
        text.append(f"{names} of {operators} operators {'is a gap' if names == 1 else 'are gaps'}", style="red")
        text.append(
            f", {share:.1%} of the roofline time ({seconds_text(share * value.roofline_seconds)} of "
            f"{seconds_text(value.roofline_seconds)}), {count:,} of {calls:,} calls",
            style="not bold",
        )
    phases = dict.fromkeys(phase for entry in value.entries for phase in entry.phases)
    if phases:
        text.append(f"\none pass each of {', '.join(map(clean, phases))}", style="not bold dim")
    claimed = {entry.evidence for entry in value.entries if entry.is_gap}
    if "claimed" in claimed:
        text.append("\nby what is claimed of the device, not by what was seen on it", style="not bold dim")
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
    _line(talk, Text(f"\n   share     time   calls  {title}", style="bold"))
    for number, gap in enumerate(gaps[:GAPS], start=1):
        _line(talk, _gap_line(gap, value.roofline_seconds))
        for line in _advice(gap, value.roofline_seconds):
            _indented(talk, line, whole=number <= EXPLAINED)
    if len(gaps) > GAPS:
        rest = gaps[GAPS:]
        names = ", ".join(dict.fromkeys(one.op for one in rest))
        text = f"{_share(sum(one.share for one in rest))} and {len(rest)} more: {clean(names)}"
        _line(talk, Text(text, style="dim"))


def _indented(talk: Talk, line: Text, *, whole: bool) -> None:
    """Print under an operator; the first ones whole, the others cut at the width of the terminal."""
    indent = INDENT if talk.out.width >= WIDE else INDENT // 3
    if not whole:
        _line(talk, Text(" " * indent).append_text(line))
        return
    for number, part in enumerate(line.wrap(talk.out, max(20, talk.out.width - indent - 5))):
        part.rstrip()
        talk.out.print(Text(" " * (indent + (5 if number else 0))).append_text(part), soft_wrap=True)


def _line(talk: Talk, text: Text) -> None:
    """Print on one line, cut at the width of the terminal."""
    talk.out.print(text, no_wrap=True, overflow="ellipsis")


def _share(value: float) -> str:
    return f"{value:8.1%}" if value >= 0.0005 or value == 0 else f"{'<0.1%':>8}"


def _gap_line(gap: _Gap, seconds: float) -> Text:
    first = gap.entries[0]
    text = Text(_share(gap.share), style="bold red" if gap.share >= 0.05 else "bold")
    text.append(f" {seconds_text(gap.share * seconds):>8} {gap.calls:7,}  ", style="not bold default")
    text.append(clean(gap.op), style="bold default")
    dtypes = ", ".join(dict.fromkeys(dtype for entry in gap.entries for dtype in entry.dtypes[:1]))
    text.append(f" {dtypes}", style="dim not bold default")
    text.append(f" · {first.device_verdict}", style="yellow not bold")
    if first.effort is not None:
        text.append(f" · {first.effort.replace('_', '/')}", style="cyan not bold")
    return text


def _advice(gap: _Gap, seconds: float) -> list[Text]:
    """What to do about it, then why it is a gap."""
    first = gap.entries[0]
    do = Text("do   ", style="green")
    do.append(_todo(gap, seconds), style="default")
    reason = first.reason.partition(f"; {first.options[0]} can stand in")[0] if first.options else first.reason
    return [do, Text(f"why  {clean(reason)}", style="dim")]


def _todo(gap: _Gap, seconds: float) -> str:
    if not gap.entries[0].is_gap:
        return "replace it where graphs are captured"
    ways = {entry.replacements[0].name: entry.replacements[0] for entry in gap.entries if entry.replacements}
    if not ways or next(iter(ways.values())).kind == "cpu_fallback":
        return "write a kernel; until then each call goes to the CPU and back"
    name, way = next(iter(ways.items()))
    text = f"take {clean(name).rpartition(' ')[2]}, a {way.kind.replace('_', ' ')}"
    costs = [one.seconds for entry in gap.entries for one in entry.replacements[:1]]
    if any(cost is None for cost in costs):
        return f"{text}; its cost is not known: {clean(way.note)}"
    cost, alone = sum(cost or 0.0 for cost in costs), gap.share * seconds
    factor = cost / alone if alone else 1.0
    times = f", {factor:{',.0f' if factor >= 10 else '.2g'}} × the operator" if factor > 1.05 else ""
    return f"{text}: {seconds_text(cost)} on paper{times}"


def _blocks(talk: Talk, title: str, blocks: Sequence[InventoryBlock], most: int) -> None:
    if not blocks:
        return
    wide = talk.out.width >= WIDE
    launches = f"{'launches':>10}" if wide else ""
    _line(talk, Text(f"\n   share  saves ≤{launches}  {title}", style="bold"))
    for one in blocks[:most]:
        text = Text(f"{_share(one.share)} {_share(one.saved) if one.saved else '':>8}")
        if wide:
            text.append(f"{one.launches:10,}")
        text.append(f"  {one.sites:4} × ")
        text.append(one.name, style="bold")
        text.append(" (pattern)" if one.recognised == "pattern" and one.kind == "block" else "", style="dim")
        text.append(": ")
        text.append_text(_block_todo(one, wide=wide))
        _line(talk, text)
    if len(blocks) > most:
        rest = ", ".join(dict.fromkeys(one.name for one in blocks[most:]))
        _line(talk, Text(f"{_share(sum(one.share for one in blocks[most:]))} and {rest}", style="dim"))


def _block_todo(one: InventoryBlock, *, wide: bool) -> Text:
    text = Text()
    if one.closes:
        text.append(f"closes {', '.join(_bare(op) for op in one.closes)}; ", style="green")
    parts = [f"{calls:,} calls of {_bare(op)}" for op, calls in one.gaps.items() if op not in one.closes]
    if parts:
        text.append(f"takes {', '.join(parts)}; ", style="yellow")
    if one.options:
        text.append(_short(one.options, wide=wide))
    elif one.operators:
        text.append(f"{one.operators[0]}: none here yet", style="dim")
    else:
        text.append("no operator of ours", style="dim")
    return text


def _bare(op: str) -> str:
    return clean(op).removeprefix("aten::")


def _short(options: Sequence[str], *, wide: bool) -> str:
    """`day0::rope@1 base:reference==1` is shown as `day0::rope base:reference`, or its end where there is no room."""
    operator, _, rest = clean(options[0]).partition(" ")
    name = rest.partition("==")[0]
    return f"{operator.partition('@')[0]} {name}" if wide else name


def _first(talk: Talk, lacking: Sequence[_Gap], blocks: Sequence[InventoryBlock]) -> None:
    """The one thing to begin with, and the command for it."""
    if not lacking:
        return
    first = lacking[0]
    around = [one for one in blocks if first.op in one.closes]
    text = Text("first: ", style="bold green")
    text.append(f"close {clean(first.op)}", style="bold")
    if around:
        block = around[0]
        text.append(
            f", or all of {block.name} at {block.sites} sites ({block.share:.1%}) in one kernel", style="default"
        )
    elif first.entries[0].options:
        text.append(f" with {escape(clean(first.entries[0].options[0]))}", style="default")
    talk.say("")
    talk.out.print(text)
    talk.say("next:  [bold]day0 register[/bold] locks what there is; with [bold]--with FILE[/bold] what you write")

"""What `day0 fit` shows: the answer, what takes the room, what would help."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from day0.cli.failures import clean
from day0.cli.talk import Talk
from day0.records import FitCard, FitReport

__all__ = ["report"]

GIB = 1 << 30
TOP = 6


def report(talk: Talk, found: FitReport) -> None:
    """Show the answer first, then the tables."""
    talk.say(_answer(found))
    if found.unread:
        talk.say(f"[yellow]weights alone[/yellow]: {_safe(found.unread)}")
    talk.say(f"[dim]{_safe(_question(found))}[/dim]")
    if found.card is not None:
        talk.say("")
        talk.out.print(_room(found, found.card))
    talk.say("")
    talk.out.print(_weights(found))
    if found.cache:
        talk.say("")
        talk.out.print(_cache(found))
    if found.options:
        talk.say("")
        talk.out.print(_options(found))
    if found.proposals:
        talk.say("")
        talk.out.print(_proposals(found))


def _answer(found: FitReport) -> str:
    card = found.card
    size = f"{found.memory_bytes / GIB:.5g} GiB"
    if card is None:
        return f"[red]fits on no layout that was searched[/red] of cards with {size}; see --layout and what would help"
    cards = f"{card.cards:,} card{'s' if card.cards > 1 else ''} of {size}"
    layout = f"tp={card.tp} ep={card.ep} pp={card.pp} dp={card.dp}"
    if not found.fits:
        return f"[red]does not fit[/red] on {cards} ({layout}): {_gib(-card.free)} GiB a card too much"
    word = ("needs at least" if found.unread else "needs") if found.asked == "smallest" else "fits on"
    return f"[green]{word} {cards}[/green]: {layout}, {_gib(card.free)} GiB a card left"


def _question(found: FitReport) -> str:
    active = f", {_count(found.active_parameters)} active" if found.active_parameters < found.parameters * 0.95 else ""
    return (
        f"{clean(found.model)}: {_count(found.parameters)} parameters{active}; "
        f"{found.batch} x {found.context:,} tokens, prompts in chunks of {found.chunk:,}; {clean(found.device)}"
    )


def _room(found: FitReport, card: FitCard) -> Table:
    table = _table("a card holds", "GiB", "share", "why")
    whole = card.total + found.reserve_bytes
    rows = [(name, size, "") for name, size in sorted(card.weights.items(), key=lambda one: -one[1])]
    small = [one for one in rows if one[1] < whole * 0.002]
    rows = [one for one in rows if one not in small]
    rows.append(("other weights", sum(size for _, size, _ in small), ", ".join(name for name, _, _ in small)))
    rows += [(f"cache: {name}", size, "") for name, size in card.cache.items()]
    rows.append(("workspace", card.workspace, f"experts of a layer and a fifth more in {card.workspace_format}"))
    rows.append(("activations", card.activations, _plan_text(found)))
    rows.append(("communication", card.communication, "in and out of sums, experts and stages"))
    rows.append(("kept for backward", card.saved, f"of {found.chunk:,} tokens a sequence"))
    rows.append(("gradients", card.gradients, "bfloat16"))
    rows.append(("optimizer", card.optimizer, "Adam: a float32 copy and two float32 moments"))
    rows.append(("reserve", found.reserve_bytes, "runtime, graphs, fragments: an assumption (--reserve)"))
    for name, size, why in rows:
        if size:
            table.add_row(name, _gib(size), f"{size / whole:.1%}", _safe(why))
    table.add_row(
        "[bold]together[/bold]",
        f"[bold]{_gib(whole)}[/bold]",
        "",
        f"{_gib(card.replicated)} GiB of weights on every card",
    )
    for note in card.rounded:
        table.add_row("", "", "", _safe(f"rounded up: {note}"))
    return table


def _plan_text(found: FitReport) -> str:
    plan = found.plan
    if plan is None:
        return ""
    text = f"planned; {_gib(plan.unplanned)} unplanned, {_gib(plan.bound)} at least"
    if plan.written > plan.planned * 1.01:
        text += f"; {_gib(plan.written)} without fused attention"
    return text


def _weights(found: FitReport) -> Table:
    table = _table("weights", "parameters", "GiB", "format", "divided by")
    for row in sorted(found.weights, key=lambda one: -one.bytes):
        table.add_row(row.title, _count(row.values), _gib(row.bytes), row.format, row.shared_by)
    total = f"[bold]{_gib(found.weight_bytes)}[/bold]"
    table.add_row("[bold]together[/bold]", _count(found.parameters), total, "", f"{found.weight_bytes / 1e9:,.1f} GB")
    return table


def _cache(found: FitReport) -> Table:
    table = _table("cache of a sequence", "layers", "KiB a token", "GiB", "format", "divided by")
    for row in found.cache:
        token = f"{row.bytes_per_token / 1024:,.2f}" if row.bytes_per_token else "-"
        table.add_row(row.title, str(row.layers), token, _gib(row.bytes), row.format, row.shared_by)
    return table


def _options(found: FitReport) -> Table:
    table = _table("cards", "layout", "GiB a card", "fits", "sequences that fit")
    for one in found.options:
        word = "[green]yes[/green]" if one.fits else "[red]no[/red]"
        table.add_row(f"{one.cards:,}", one.layout, _gib(one.bytes_per_card), word, f"{one.sequences:,}")
    return table


def _proposals(found: FitReport) -> Table:
    table = _table("what would help", "GiB a card saved", "how")
    for one in found.proposals[:TOP]:
        table.add_row(_safe(one.title), _gib(one.bytes_saved), _safe(one.why))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    numbers = ("GiB", "share", "parameters", "layers", "KiB", "cards", "sequences")
    for name in columns:
        table.add_column(name, justify="right" if name.startswith(numbers) else "left", overflow="fold")
    return table


def _gib(size: int) -> str:
    value = size / GIB
    return f"{value:,.2f}" if value >= 0.01 or not size else f"{value:.1g}"


def _count(values: int) -> str:
    for limit, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if values >= limit:
            return f"{values / limit:,.2f} {letter}"
    return str(values)


def _safe(text: object) -> str:
    return escape(clean(str(text)))

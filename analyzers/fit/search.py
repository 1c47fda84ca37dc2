"""The smallest numbers of cards, the best layout of a given number, and what would need fewer of them."""

from __future__ import annotations

from collections.abc import Iterable

from day0.analyzers.fit.cards import FOUR_BITS, CardBytes, Demand, card_of, weight_bytes
from day0.analyzers.fit.formats import FORMATS
from day0.analyzers.fit.layouts import Layout, layouts_of
from day0.records import FitProposal

__all__ = ["best_layout", "proposals", "room_for", "smallest"]

MAX_SEARCHED = 4096
"""Cards; a model that needs more gets no search, but any layout can be asked for."""


def best_layout(demand: Demand, cards: int, node: int) -> CardBytes | None:
    """Return the layout of so many cards that leaves the most room on its fullest card."""
    made = [card_of(demand, layout) for layout in layouts_of(cards, demand.shape, node)]
    return min(made, key=lambda one: (one.total, one.layout.pp), default=None)


def smallest(demand: Demand, usable: int, node: int, *, step: int = 1) -> CardBytes | None:
    """Return the smallest number of cards, a multiple of `step`, on which the model fits; None beyond the search."""
    least = sum(weight_bytes(one, demand.formats) for one in demand.weights)
    if demand.resident_layers is not None:
        least = 0
    first = max(1, -(-least // max(1, usable)))
    for cards in _counts(-(-first // step) * step, step):
        made = best_layout(demand, cards, node)
        if made is not None and made.total <= usable:
            return made
    return None


def _counts(first: int, step: int) -> Iterable[int]:
    """Go up one by one, and above 64 in whole steps of an eighth: nobody orders 771 cards."""
    cards = first
    while cards <= MAX_SEARCHED:
        yield cards
        cards += step if cards < 64 else -(-(cards // 8) // step) * step
        if cards > 64:
            cards = -(-cards // 8) * 8


def room_for(card: CardBytes, demand: Demand, usable: int) -> int:
    """Return how many sequences of the asked context fit, on all cards together."""
    sequences = -(-demand.batch // card.layout.dp)
    each = sum(card.cache.values()) / sequences
    free = usable - card.total + sum(card.cache.values())
    return max(0, int(free / each)) * card.layout.dp if each else 0


def proposals(demand: Demand, card: CardBytes) -> tuple[FitProposal, ...]:
    """Return what would take less on that card, most first, with the bytes that each would save."""
    if demand.saved is not None:
        found = [*_training(demand, card), *_smaller(demand)]
    else:
        found = [*_experts_in_batches(demand, card), *_other_formats(demand), *_smaller(demand)]
    priced = []
    for title, why, changed in found:
        saved = card.total - card_of(changed, card.layout).total
        if saved > 0:
            priced.append(FitProposal(title=title, why=why, bytes_saved=saved))
    return tuple(sorted(priced, key=lambda one: -one.bytes_saved))


Change = tuple[str, str, Demand]


def _experts_in_batches(demand: Demand, card: CardBytes) -> list[Change]:
    if not card.weights.get("experts") or demand.resident_layers is not None:
        return []
    changed = demand.changed(resident_layers=2)
    why = "the routed experts of two layers lie on the card, the next are loaded meanwhile: bound by the host link"
    return [("load expert weights in batches", why, changed)]


def _training(demand: Demand, card: CardBytes) -> list[Change]:
    changes: list[Change] = []
    if not demand.checkpointing:
        why = "layers keep their inputs and run again in the backward pass: a third more arithmetic"
        changes.append(("activation checkpointing", why, demand.changed(checkpointing=True)))
    if card.layout.dp > 1 and not demand.optimizer_divided:
        why = "each replica holds its part of the states alone"
        changes.append(("optimizer states divided among replicas", why, demand.changed(optimizer_divided=True)))
    return changes


def _other_formats(demand: Demand) -> list[Change]:
    changes: list[Change] = []
    experts = [one for one in demand.weights if one.kind == "experts"]
    now = demand.formats.get("experts") or (experts[0].native if experts else "") or "as they are"
    if experts and now not in FOUR_BITS:
        changed = demand.changed(formats={**demand.formats, "experts": "mxfp4"})
        changes.append(("routed experts in MXFP4", "4.25 bits a weight; measure the loss first", changed))
    dense = ("attention", "shared", "dense", "indexer")
    if any(_wide(demand, kind) for kind in dense):
        changed = demand.changed(formats={**demand.formats, **dict.fromkeys(dense, "fp8")})
        changes.append(("attention, shared and dense weights in FP8", "as DeepSeek's checkpoints have them", changed))
    if demand.kv_format != "fp8":
        changes.append(("cache in FP8", "--kv-format fp8", demand.changed(kv_format="fp8")))
    return changes


def _wide(demand: Demand, kind: str) -> bool:
    own = demand.formats.get(kind)
    return any(one.kind == kind for one in demand.weights) and (own is None or FORMATS[own].bits > 8)


def _smaller(demand: Demand) -> list[Change]:
    changes: list[Change] = []
    if demand.batch > 1:
        half = demand.batch // 2
        changes.append((f"batch {half} instead of {demand.batch}", "", demand.changed(batch=half)))
    if demand.context > 1:
        half = demand.context // 2
        changed = demand.changed(context=half)
        changes.append((f"context {half:,} instead of {demand.context:,}", "", changed))
    return changes


def layout_text(layout: Layout) -> str:
    """Return the parts of a layout that are more than one."""
    parts = [(name, getattr(layout, name)) for name in ("tp", "ep", "pp", "dp")]
    return " ".join(f"{name}={value}" for name, value in parts if value > 1) or "tp=1"

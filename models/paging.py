"""Which page of the cache holds which token: block tables, free pages, and how well they are used.

A request owns sequences, one of text and one of image patches for example. Its logical view is their tokens in that
order; a physical slot is page number times page size plus offset. Inside a page tokens are contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from day0.errors import Day0Error

__all__ = [
    "PageMetrics",
    "PageTable",
    "Sequence",
    "grow",
    "make_pages",
    "metrics",
    "release",
    "sequences_of",
    "slots_of",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequence:
    """The pages of one sequence in the order of its tokens; the last may be filled in part."""

    request: int
    kind: str
    blocks: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PageTable:
    """All sequences over one pool of pages. A change makes a new table and leaves the old as it is."""

    block_size: int
    blocks: int
    """Pages in the pool."""
    sequences: tuple[Sequence, ...]
    free: tuple[int, ...]
    """Pages that nobody owns; the next one is taken from the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageMetrics:
    """How well the pool is used."""

    used_blocks: int
    free_blocks: int
    wasted_share: float
    """Slots in owned pages that hold no token, over all slots in owned pages (internal fragmentation)."""
    scattered_share: float
    """1 - longest run of free pages over all free pages (external fragmentation)."""


def make_pages(block_size: int, blocks: int) -> PageTable:
    """Return a table of free pages. They are handed out in no order, so that a table that is not used shows."""
    return PageTable(block_size=block_size, blocks=blocks, sequences=(), free=_order(0, blocks))


def _order(first: int, last: int) -> tuple[int, ...]:
    return (*range(first + 1, last, 2), *range(first, last, 2))


def grow(table: PageTable, request: int, kind: str, tokens: int) -> PageTable:
    """Add tokens at the end of a sequence, which begins with the first of them. The pool doubles when it is full."""
    old = _find(table, request, kind)
    mine = old or Sequence(request=request, kind=kind, blocks=(), tokens=0)
    total = mine.tokens + tokens
    missing = -(-total // table.block_size) - len(mine.blocks)
    while missing > len(table.free):
        more = _order(table.blocks, 2 * table.blocks)
        table = replace(table, blocks=2 * table.blocks, free=(*more, *table.free))
    kept = len(table.free) - missing
    taken = tuple(reversed(table.free[kept:]))
    new = replace(mine, blocks=mine.blocks + taken, tokens=total)
    others = table.sequences if old is not None else (*table.sequences, mine)
    sequences = tuple(new if one is mine else one for one in others)
    return replace(table, sequences=sequences, free=table.free[:kept])


def release(table: PageTable, request: int, kind: str) -> PageTable:
    """Give the pages of a sequence back.

    Raises Day0Error if the request has no such sequence.
    """
    mine = _find(table, request, kind)
    if mine is None:
        raise Day0Error("page table", f"request {request} has no sequence '{kind}'", hint="release a sequence once")
    others = tuple(one for one in table.sequences if one is not mine)
    return replace(table, sequences=others, free=(*table.free, *reversed(mine.blocks)))


def _find(table: PageTable, request: int, kind: str) -> Sequence | None:
    return next((one for one in table.sequences if (one.request, one.kind) == (request, kind)), None)


def sequences_of(table: PageTable, request: int) -> tuple[Sequence, ...]:
    """Return the sequences of a request in the order in which they began."""
    return tuple(one for one in table.sequences if one.request == request)


def slots_of(table: PageTable, request: int) -> list[int]:
    """Return the physical slot of each token of a request: its logical view."""
    size = table.block_size
    return [
        one.blocks[token // size] * size + token % size
        for one in sequences_of(table, request)
        for token in range(one.tokens)
    ]


def metrics(table: PageTable) -> PageMetrics:
    """Return how well the pool is used; a pool without owned or free pages wastes or scatters nothing."""
    used = sum(len(one.blocks) for one in table.sequences)
    held = sum(one.tokens for one in table.sequences)
    longest = run = 0
    before = -2
    for block in sorted(table.free):
        run = run + 1 if block == before + 1 else 1
        longest, before = max(longest, run), block
    return PageMetrics(
        used_blocks=used,
        free_blocks=len(table.free),
        wasted_share=1 - held / (used * table.block_size) if used else 0.0,
        scattered_share=1 - longest / len(table.free) if table.free else 0.0,
    )

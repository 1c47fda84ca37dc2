"""What the toy keeps between calls, and where in memory it lies.

Shape suffixes: B batch, S new tokens, T all tokens, P pages, G tokens in a page, C row width, M pages of a sequence,
W = kernel - 1 kept tokens, H heads, K key, V value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from day0.errors import Day0Error
from day0.models.paging import PageTable, grow, make_pages, sequences_of, slots_of
from day0.models.toy.calls import Calls

__all__ = ["KdaCache", "MlaCache", "Placement", "ToyCache", "place", "read_rows", "write_rows"]

SPARE_BLOCKS = 4
"""Free pages for each request in a new pool, so that the first steps of decode need no larger one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KdaCache:
    """What a KDA layer keeps, in buffers of its own: the last inputs of its convolutions, and the state."""

    conv_BWC: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    state_BHKV: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class MlaCache:
    """What an MLA layer keeps for every token, in pages: its latent row, and its key for the indexer."""

    kv_PGC: torch.Tensor
    index_PGC: torch.Tensor | None
    """None in a layer that reads what another layer's indexer chose."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyCache:
    """One cache for each layer, and the page table they share.

    A call makes a new one. Pages are shared with the old one: of two calls that continue the same cache, the pages
    hold the tokens of the later one.
    """

    layers: tuple[KdaCache | MlaCache, ...]
    pages: PageTable
    length: int
    """How many tokens it holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where the tokens of one call lie, as tensors on the device."""

    blocks: int
    block_size: int
    first: int
    """How many tokens of each request were there before."""
    new_N: torch.Tensor
    """Slots of the new tokens, [B * S] int64."""
    slot_BT: torch.Tensor
    """Slots of all tokens, int32."""
    tables: tuple[tuple[torch.Tensor, torch.Tensor, int], ...]
    """For each kind of sequence: its pages [B, M] int32, its lengths [B] int32, and the largest length."""


def place(
    pages: PageTable | None, block_size: int, batch: int, parts: dict[str, int], device: torch.device
) -> tuple[PageTable, Placement]:
    """Find slots for new tokens of each request, `parts` by kind of sequence, and put the tables onto the device.

    Raises Day0Error for another number of requests than before.
    """
    tokens = sum(parts.values())
    if pages is None:
        needed = sum(-(-count // block_size) for count in parts.values())
        pages = make_pages(block_size, batch * (needed + SPARE_BLOCKS))
    requests = len({one.request for one in pages.sequences})
    if requests not in (0, batch):
        what = f"expected the {requests} prompts that the cache holds, got {batch}"
        raise Day0Error("input_ids", what, hint="continue a cache with the batch that began it")
    for request in range(batch):
        for kind, count in parts.items():
            if count:
                pages = grow(pages, request, kind, count)
    slots = [slots_of(pages, request) for request in range(batch)]
    kinds = list(zip(*(sequences_of(pages, request) for request in range(batch)), strict=True))
    tables = tuple(
        (
            torch.tensor([one.blocks for one in kind], dtype=torch.int32, device=device),
            torch.tensor([one.tokens for one in kind], dtype=torch.int32, device=device),
            max(one.tokens for one in kind),
        )
        for kind in kinds
    )
    return pages, Placement(
        blocks=pages.blocks,
        block_size=block_size,
        first=len(slots[0]) - tokens,
        new_N=torch.tensor(
            [slot for row in slots for slot in row[len(row) - tokens :]], dtype=torch.int64, device=device
        ),
        slot_BT=torch.tensor(slots, dtype=torch.int32, device=device),
        tables=tables,
    )


def write_rows(calls: Calls, pages_PGC: torch.Tensor | None, rows_BSC: torch.Tensor, where: Placement) -> torch.Tensor:
    """Write the rows of the new tokens and return the pages: new ones, or more of them, where they do not suffice."""
    width = rows_BSC.shape[-1]
    held = 0 if pages_PGC is None else pages_PGC.shape[0]
    if pages_PGC is None or held < where.blocks:
        more_PGC = rows_BSC.new_zeros(where.blocks - held, where.block_size, width)
        pages_PGC = more_PGC if pages_PGC is None else torch.cat((pages_PGC, more_PGC))
    calls.paged_kv_write(pages_PGC, rows_BSC.reshape(-1, width), where.new_N, width)
    return pages_PGC


def read_rows(calls: Calls, pages_PGC: torch.Tensor, where: Placement) -> torch.Tensor:
    """Return the rows of all tokens in their logical order, [B, T, C]."""
    width, dtype = pages_PGC.shape[-1], pages_PGC.dtype
    parts = [
        calls.paged_kv_gather(pages_PGC, table_BM, length_B, width, width, rows, dtype)
        for table_BM, length_B, rows in where.tables
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

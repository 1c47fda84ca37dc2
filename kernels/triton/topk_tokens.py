"""day0::topk_tokens in Triton: the cut by a radix selection, then one answer, whatever the ties.

The score at the cut comes from histograms over the bits of all scores where there are few rows (`_radix.py`), and from
torch's own selection where there are many. The tokens are taken by that score, and those that equal it by rising index.
What remains is sorted: a few rows by counting for each token how many come before it.

Shape suffixes: B batch, S queries, T keys, K chosen tokens.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch

from day0.devices.current import on_its_device
from day0.implementation import Constraints, Implementation, Limit
from day0.kernels.triton._radix import LEVELS, TABLE, radix
from day0.kernels.triton._tiles import sizes
from day0.kernels.triton._triton import has_triton, next_power_of_2, triton_and_language
from day0.reference_ops.topk_tokens import validate

__all__ = ["CHOICES", "FEW", "FEW_CHOICES", "IMPLEMENTATIONS", "TILES"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next are."""
keys_of: Any = None
cut_of: Any = None

TILES = {"keys": 2048, "warps": 4}
FEW = {"keys": 2048, "warps": 8, "ranked": 16}
"""Keys of one program; with up to `RANKED_ROWS` rows, a device waits for the longest program and not for all of them:
so many chosen tokens are sorted by one program there."""
CHOICES = {"keys": (1024, 2048, 4096), "warps": (4, 8, 16)}
FEW_CHOICES = {**CHOICES, "ranked": (8, 16, 32)}
LARGEST = 8192
"""Tokens that one program sorts."""
FEW_ROWS = 64
"""Up to so many the histograms are ours: 26 KiB for each."""
RANKED_ROWS = 8
"""Up to so many rows are sorted by counting."""


class Kernels(NamedTuple):
    """Jitted kernels."""

    count: Any
    write: Any
    order: Any
    rank: Any


@cache
def _kernels() -> Kernels:
    """Return the kernels that count, write and sort what is chosen."""
    global tl, keys_of, cut_of
    triton, tl = triton_and_language()
    keys_of, cut_of = radix().keys_of, radix().cut_of

    @triton.jit
    def count(
        scores, lengths, cut, table, state, counts, keys, chunks,
        LENGTHS: tl.constexpr, FOUND: tl.constexpr, BLOCK: tl.constexpr, TABLE: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(1).to(tl.int64)
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        key = keys_of(scores, lengths, row, place, keys, LENGTHS)
        if FOUND:
            limit = tl.load(cut + row)
        else:
            limit = cut_of(table, state, row, TABLE)
            # Every program of a row writes the same.
            tl.store(cut + row, limit)
        at = counts + (row * chunks + tl.program_id(0)) * 2
        tl.store(at, tl.sum((key > limit).to(tl.int32), 0))
        tl.store(at + 1, tl.sum(((key == limit) & (key > 0)).to(tl.int32), 0))

    @triton.jit
    def write(
        scores, lengths, cut, counts, found, keys, chunks, topk,
        LENGTHS: tl.constexpr, BLOCK: tl.constexpr, CP: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(1).to(tl.int64)
        mine = tl.program_id(0)
        chunk = tl.arange(0, CP)
        more = tl.load(counts + (row * chunks + chunk) * 2, mask=chunk < chunks, other=0)
        same = tl.load(counts + (row * chunks + chunk) * 2 + 1, mask=chunk < chunks, other=0)
        left = topk - tl.sum(more, 0)
        equal_before = tl.sum(tl.where(chunk < mine, same, 0), 0)
        begin = tl.sum(tl.where(chunk < mine, more, 0), 0) + tl.minimum(equal_before, left)
        place = mine * BLOCK + tl.arange(0, BLOCK)
        key = keys_of(scores, lengths, row, place, keys, LENGTHS)
        limit = tl.load(cut + row)
        equal = (key == limit) & (key > 0)
        order = equal_before + tl.cumsum(equal.to(tl.int32), 0)
        take = (key > limit) | (equal & (order <= left))
        to = begin + tl.cumsum(take.to(tl.int32), 0) - 1
        # The score above the complement of the place: no two are equal.
        both = (key.to(tl.uint64) << 32) | (0xFFFFFFFF - place.to(tl.uint32)).to(tl.uint64)
        tl.store(found + row * topk + to, (both ^ 0x8000000000000000).to(tl.int64, bitcast=True), mask=take)

    @triton.jit
    def order(found, counts, chosen, valid, chunks, topk, KP: tl.constexpr, CP: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        chunk = tl.arange(0, CP)
        all_ = tl.sum(tl.load(counts + row * chunks * 2 + chunk, mask=chunk < 2 * chunks, other=0), 0)
        number = tl.minimum(all_, topk)
        place = tl.arange(0, KP)
        both = tl.load(found + row * topk + place, mask=place < number, other=-0x8000000000000000)
        both = tl.sort(both, descending=True)
        index = (0xFFFFFFFF - (both.to(tl.uint64, bitcast=True) & 0xFFFFFFFF)).to(tl.int32)
        tl.store(chosen + row * topk + place, tl.where(place < number, index, -1), mask=place < topk)
        tl.store(valid + row, number)

    @triton.jit
    def rank(
        found, counts, chosen, valid, chunks, topk,
        PART: tl.constexpr, BLOCK: tl.constexpr, KP: tl.constexpr, CP: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(1).to(tl.int64)
        chunk = tl.arange(0, CP)
        all_ = tl.sum(tl.load(counts + row * chunks * 2 + chunk, mask=chunk < 2 * chunks, other=0), 0)
        number = tl.minimum(all_, topk)
        mine = tl.program_id(0) * PART + tl.arange(0, PART)
        both = tl.load(found + row * topk + mine, mask=mine < number, other=-0x8000000000000000)
        before = tl.zeros([PART], tl.int32)
        for begin in range(0, KP, BLOCK):
            place = begin + tl.arange(0, BLOCK)
            other = tl.load(found + row * topk + place, mask=place < number, other=-0x8000000000000000)
            before += tl.sum((other[None, :] > both[:, None]).to(tl.int32), 1)
        index = (0xFFFFFFFF - (both.to(tl.uint64, bitcast=True) & 0xFFFFFFFF)).to(tl.int32)
        tl.store(chosen + row * topk + before, index, mask=mine < number)
        tl.store(chosen + row * topk + mine, -1, mask=(mine >= number) & (mine < topk))
        tl.store(valid + row, number)

    return Kernels(count, write, order, rank)


@on_its_device
def select(
    logits_BST: torch.Tensor, topk: int, lengths_BS: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return indices [B, S, K] int32 and how many of them are valid, [B, S] int32."""
    validate(logits_BST, topk, lengths_BS)
    batch, queries, keys = logits_BST.shape
    device = logits_BST.device
    rows = batch * queries
    if not rows or not keys:
        nothing_BSK = torch.full((batch, queries, topk), -1, dtype=torch.int32, device=device)
        return nothing_BSK, torch.zeros(batch, queries, dtype=torch.int32, device=device)
    logits_BST = logits_BST.contiguous()
    lengths = None if lengths_BS is None else lengths_BS.contiguous()
    few = rows <= FEW_ROWS
    tile = sizes("topk_tokens_few", FEW, device) if rows <= RANKED_ROWS else sizes("topk_tokens", TILES, device)
    chunks = -(-keys // tile["keys"])
    cut = torch.empty(rows, dtype=torch.uint32, device=device) if few else _cut(logits_BST, topk, lengths)
    table = torch.zeros((rows if few else 0) * TABLE, dtype=torch.int32, device=device)
    state = torch.empty((rows if few else 0) * 4, dtype=torch.int32, device=device)
    counts = torch.empty(rows * chunks * 2, dtype=torch.int32, device=device)
    found = torch.empty(rows * topk, dtype=torch.int64, device=device)
    chosen_BSK = torch.empty(batch, queries, topk, dtype=torch.int32, device=device)
    valid_BS = torch.empty(batch, queries, dtype=torch.int32, device=device)
    kernels, grid, many = _kernels(), (chunks, rows), next_power_of_2(chunks)
    named = {"LENGTHS": lengths is not None, "BLOCK": tile["keys"], "num_warps": tile["warps"]}
    for level in range(LEVELS if few else 0):
        radix().count_bins[grid](logits_BST, lengths, table, state, keys, topk, LEVEL=level, TABLE=TABLE, **named)
    kernels.count[grid](
        logits_BST, lengths, cut, table, state, counts, keys, chunks, FOUND=not few, TABLE=TABLE, **named
    )
    kernels.write[grid](logits_BST, lengths, cut, counts, found, keys, chunks, topk, CP=many, **named)
    sorting = (found, counts, chosen_BSK, valid_BS, chunks, topk)
    whole = next_power_of_2(topk)
    if rows <= RANKED_ROWS:
        parts = (-(-topk // tile["ranked"]), rows)
        kernels.rank[parts](*sorting, PART=tile["ranked"], BLOCK=min(whole, 256), KP=whole, CP=2 * many, num_warps=8)
    else:
        kernels.order[(rows,)](*sorting, KP=whole, CP=2 * many, num_warps=8)
    return chosen_BSK, valid_BS


def _cut(logits_BST: torch.Tensor, topk: int, lengths_BS: torch.Tensor | None) -> torch.Tensor:
    """Return the score at the cut of every row, as the number that rises with it; 0 where all open keys are taken."""
    closed_BST = torch.isnan(logits_BST)
    if lengths_BS is not None:
        place_T = torch.arange(logits_BST.shape[-1], device=logits_BST.device)
        closed_BST = closed_BST | (place_T >= lengths_BS[..., None])
    scores_BST = logits_BST.to(torch.float32).masked_fill(closed_BST, float("-inf"))
    keys = logits_BST.shape[-1]
    cut_BS = torch.topk(scores_BST, min(topk, keys), sorted=False).values.amin(dim=-1) + 0.0
    bits = cut_BS.view(torch.int32)
    rising = torch.where(bits < 0, ~bits, bits ^ -0x80000000)
    return torch.where(torch.isneginf(cut_BS), 0, rising).view(torch.uint32).reshape(-1)


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::topk_tokens",
        contract=2,
        id="triton",
        version="1.2",
        kind="kernel",
        run=select,
        why="a selection instead of a sort of all keys; ties by rising index, so that all ranks agree",
        devices=("cuda",),
        constraints=Constraints(
            first_dtype=frozenset({"float32", "bfloat16", "float16"}),
            arguments={"topk": Limit(at_least=1, at_most=LARGEST)},
        ),
        predicate=has_triton,
        rank=50,
    ),
)

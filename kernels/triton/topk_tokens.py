"""day0::topk_tokens in Triton: the cut by a radix selection, then one answer, whatever the ties.

torch's own selection finds the score at the cut; which of several equal ones it takes is not specified, so the tokens
are taken again by that score, and those that equal it by rising index. What remains is sorted.

Shape suffixes: B batch, S queries, T keys, K chosen tokens.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from day0.implementation import Constraints, Implementation, Limit
from day0.kernels.triton._triton import has_triton, next_power_of_2, triton_and_language
from day0.reference_ops.topk_tokens import validate

__all__ = ["IMPLEMENTATIONS"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call."""

CHUNK, WARPS = 2048, 4
"""Keys of one program that takes tokens."""
LARGEST = 8192
"""Tokens that one program sorts."""


@cache
def _kernels() -> tuple[Any, Any, Any]:
    """Return the kernels that count, write and sort what is chosen."""
    global tl
    triton, tl = triton_and_language()

    @triton.jit
    def count(scores, cut, counts, keys, chunks, BLOCK: tl.constexpr):
        row = tl.program_id(1).to(tl.int64)
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        score = tl.load(scores + row * keys + place, mask=place < keys, other=float("-inf"))
        limit = tl.load(cut + row)
        at = counts + (row * chunks + tl.program_id(0)) * 2
        tl.store(at, tl.sum((score > limit).to(tl.int32), 0))
        tl.store(at + 1, tl.sum(((score == limit) & (score != float("-inf"))).to(tl.int32), 0))

    @triton.jit
    def write(scores, cut, counts, found, keys, chunks, topk, BLOCK: tl.constexpr, CP: tl.constexpr):
        row = tl.program_id(1).to(tl.int64)
        mine = tl.program_id(0)
        chunk = tl.arange(0, CP)
        more = tl.load(counts + (row * chunks + chunk) * 2, mask=chunk < chunks, other=0)
        same = tl.load(counts + (row * chunks + chunk) * 2 + 1, mask=chunk < chunks, other=0)
        left = topk - tl.sum(more, 0)
        equal_before = tl.sum(tl.where(chunk < mine, same, 0), 0)
        begin = tl.sum(tl.where(chunk < mine, more, 0), 0) + tl.minimum(equal_before, left)
        place = mine * BLOCK + tl.arange(0, BLOCK)
        score = tl.load(scores + row * keys + place, mask=place < keys, other=float("-inf"))
        limit = tl.load(cut + row)
        equal = (score == limit) & (score != float("-inf"))
        order = equal_before + tl.cumsum(equal.to(tl.int32), 0)
        take = (score > limit) | (equal & (order <= left))
        to = begin + tl.cumsum(take.to(tl.int32), 0) - 1
        # Bits that rise with the score, -0 as 0; below them the complement of the place.
        bits = (score + 0.0).to(tl.uint32, bitcast=True)
        rising = tl.where((bits >> 31) != 0, ~bits, bits | 0x80000000)
        both = (rising.to(tl.uint64) << 32) | (0xFFFFFFFF - place.to(tl.uint32)).to(tl.uint64)
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

    return count, write, order


def select(
    logits_BST: torch.Tensor, topk: int, lengths_BS: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return indices [B, S, K] int32 and how many of them are valid, [B, S] int32."""
    validate(logits_BST, topk, lengths_BS)
    batch, queries, keys = logits_BST.shape
    device = logits_BST.device
    rows, chunks = batch * queries, -(-keys // CHUNK)
    if not rows or not keys:
        nothing_BSK = torch.full((batch, queries, topk), -1, dtype=torch.int32, device=device)
        return nothing_BSK, torch.zeros(batch, queries, dtype=torch.int32, device=device)
    scores_BST = _open(logits_BST.contiguous(), lengths_BS)
    cut_BS1 = torch.topk(scores_BST, min(topk, keys), sorted=False).values.amin(dim=-1)
    counts = torch.empty(rows * chunks * 2, dtype=torch.int32, device=device)
    found = torch.empty(rows * topk, dtype=torch.int64, device=device)
    chosen_BSK = torch.empty(batch, queries, topk, dtype=torch.int32, device=device)
    valid_BS = torch.empty(batch, queries, dtype=torch.int32, device=device)
    count, write, order = _kernels()
    grid, many = (chunks, rows), next_power_of_2(chunks)
    count[grid](scores_BST, cut_BS1, counts, keys, chunks, BLOCK=CHUNK, num_warps=WARPS)
    write[grid](scores_BST, cut_BS1, counts, found, keys, chunks, topk, BLOCK=CHUNK, CP=many, num_warps=WARPS)
    order[(rows,)](
        found, counts, chosen_BSK, valid_BS, chunks, topk, KP=next_power_of_2(topk), CP=2 * many, num_warps=8
    )
    return chosen_BSK, valid_BS


def _open(logits_BST: torch.Tensor, lengths_BS: torch.Tensor | None) -> torch.Tensor:
    """Return float32 scores with -inf for what may not be chosen."""
    closed_BST = torch.isnan(logits_BST)
    if lengths_BS is not None:
        place_T = torch.arange(logits_BST.shape[-1], device=logits_BST.device)
        closed_BST = closed_BST | (place_T >= lengths_BS[..., None])
    return logits_BST.to(torch.float32).masked_fill(closed_BST, float("-inf"))


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::topk_tokens",
        contract=2,
        id="triton",
        version="1.0",
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

"""day0::attention_residual in Triton: snapshots are read for their weights, and from the cache for their sum.

Shape suffixes: B batch, S tokens, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from day0.devices.current import on_its_device
from day0.implementation import Accepted, Call, Constraints, Implementation, Limit, Rejected, TensorLimit
from day0.kernels.triton._math import functions
from day0.kernels.triton._tiles import sizes
from day0.kernels.triton._triton import FLOATS, has_triton, next_power_of_2, triton_and_language
from day0.reference_ops.attention_residual import validate

__all__ = ["CHOICES", "IMPLEMENTATIONS", "TILES"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next is."""
exp: Any = None
added: Any = None

TILES = {"columns": 512, "warps": 4}
CHOICES = {"columns": (512, 1024, 2048), "warps": (2, 4, 8)}
LARGEST_BANK = 32
"""Snapshots: each is an argument of the kernel, and its code is repeated for each."""
LARGEST_HIDDEN = 32768


@cache
def _kernel() -> Any:
    global tl, exp, added
    triton, tl = triton_and_language()
    exp = functions().exp

    @triton.jit
    def added(some, one):
        return some + (one,)  # noqa: RUF005 - Triton's own language

    @triton.jit
    def mix(bank, norm, score, out, hidden, eps, BLOCK: tl.constexpr):
        # In 64 bits: rows times the width pass 2^31.
        row = tl.program_id(0).to(tl.int64) * hidden
        squares, products = (), ()
        for _ in tl.static_range(len(bank)):
            squares = added(squares, tl.zeros([BLOCK], tl.float32))
            products = added(products, tl.zeros([BLOCK], tl.float32))
        # Summed within a thread only: all snapshots of a block are asked for before any is waited for.
        for begin in range(0, hidden, BLOCK):
            d = begin + tl.arange(0, BLOCK)
            inside = d < hidden
            factor = tl.load(norm + d, mask=inside, other=0.0).to(tl.float32)
            factor *= tl.load(score + d, mask=inside, other=0.0).to(tl.float32)
            more, further = (), ()
            for one in tl.static_range(len(bank)):
                value = tl.load(bank[one] + row + d, mask=inside, other=0.0).to(tl.float32)
                more = added(more, squares[one] + value * value)
                further = added(further, products[one] + value * factor)
            squares, products = more, further
        largest = float("-inf")
        reads = ()
        for one in tl.static_range(len(bank)):
            read = tl.sum(products[one], 0) / tl.sqrt_rn(tl.sum(squares[one], 0) / hidden + eps)
            reads = added(reads, read)
            largest = tl.maximum(largest, read)
        weights = 0.0
        shares = ()
        for one in tl.static_range(len(bank)):
            weight = exp(reads[one] - largest)
            shares = added(shares, weight)
            weights += weight
        for begin in range(0, hidden, BLOCK):
            d = begin + tl.arange(0, BLOCK)
            inside = d < hidden
            total = tl.zeros([BLOCK], tl.float32)
            for one in tl.static_range(len(bank)):
                # The second time it comes from the cache.
                total += shares[one] * tl.load(bank[one] + row + d, mask=inside, other=0.0).to(tl.float32)
            tl.store(out + row + d, (total / weights).to(out.dtype.element_ty), mask=inside)

    return mix


@on_its_device
def mix(
    bank: Sequence[torch.Tensor], prefix_BSD: torch.Tensor, norm_D: torch.Tensor, score_D: torch.Tensor, eps: float
) -> torch.Tensor:
    """Return [B, S, D] in the dtype of prefix."""
    validate(bank, prefix_BSD, norm_D, score_D, eps)
    if not bank or not prefix_BSD.numel():
        return prefix_BSD.clone(memory_format=torch.contiguous_format)
    prefix_BSD = prefix_BSD.contiguous()
    out_BSD = torch.empty_like(prefix_BSD)
    batch, tokens, hidden = prefix_BSD.shape
    values = (*(one_BSD.contiguous() for one_BSD in bank), prefix_BSD)
    tile = sizes("attention_residual", TILES, prefix_BSD.device)
    _kernel()[(batch * tokens,)](
        values,
        norm_D.contiguous(),
        score_D.contiguous(),
        out_BSD,
        hidden,
        eps,
        BLOCK=min(tile["columns"], next_power_of_2(hidden, 16)),
        num_warps=tile["warps"],
    )
    return out_BSD


def fits(call: Call) -> Accepted | Rejected:
    """Triton is installed, and there are no more snapshots than the kernel has arguments for."""
    bank = call.arguments["bank"]
    number = len(bank) if isinstance(bank, tuple) else 0
    if number > LARGEST_BANK:
        return Rejected(f"{number} snapshots are more than {LARGEST_BANK}")
    return has_triton(call)


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::attention_residual",
        contract=1,
        id="triton",
        version="1.1",
        kind="kernel",
        run=mix,
        why="each snapshot is read from memory once; stacked in eager torch they are read and written several times",
        devices=("cuda",),
        constraints=Constraints(
            dtypes=FLOATS, arguments={"prefix": TensorLimit(sizes={-1: Limit(at_most=LARGEST_HIDDEN)})}
        ),
        predicate=fits,
        rank=50,
    ),
)

"""Which blocks of a paged cache a decode step reads, and need not be skipped or fetched in vain.

Shape suffixes: B batch, S queries, K chosen rows, N blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance
from day0.reference_ops._write import write

__all__ = ["NAME", "OP", "fake", "reference", "validate"]

NAME = "day0::block_bitmap"


def validate(indices_BSK: torch.Tensor, block_size: int, blocks: int) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("indices", indices_BSK, "BSK")
    check.dtype("indices", indices_BSK, torch.int32)
    check.true("block_size", block_size >= 1, "at least 1", block_size)
    check.true("blocks", blocks >= 0, "0 or more", blocks)


def reference(indices_BSK: torch.Tensor, block_size: int, blocks: int) -> torch.Tensor:
    """Return [B, N] bool: True where any query of the batch row reads any row of the block.

    Indices are row numbers, block * block_size + offset. Those below 0 or beyond the last block are no rows.
    """
    validate(indices_BSK, block_size, blocks)
    rows_BR = indices_BSK.to(torch.int64).flatten(1)
    exists_BR = (rows_BR >= 0) & (rows_BR < block_size * blocks)
    # One more column takes what is not a row.
    block_BR = torch.where(exists_BR, torch.div(rows_BR, block_size, rounding_mode="floor"), blocks)
    read_BN = torch.zeros(rows_BR.shape[0], blocks + 1, dtype=torch.bool, device=indices_BSK.device)
    read_BN = read_BN.scatter(-1, block_BR, True)[:, :blocks]
    return read_BN.clone(memory_format=torch.contiguous_format)


def fake(indices_BSK: torch.Tensor, block_size: int, blocks: int) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(indices_BSK, block_size, blocks)
    return indices_BSK.new_empty((indices_BSK.shape[0], blocks), dtype=torch.bool)


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Rows of some blocks only, -1 among them."""
    indices_BSK = args[0]
    block_size = args[1] if len(args) > 1 else kwargs["block_size"]
    blocks = args[2] if len(args) > 2 else kwargs["blocks"]
    # Squared, so that the first blocks are read more than the last.
    part = torch.rand(indices_BSK.shape, generator=generator, dtype=torch.float64).square()
    write(indices_BSK, (part * (block_size * blocks + 1)).to(torch.int64) - 1)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, blocks of 5, nothing read, no blocks, rows that do not exist, and 2048 rows of a cache of 64-token pages."""
    for kind, shape, block_size, blocks in (
        ("small", (1, 1, 4), 4, 6),
        ("odd", (3, 2, 7), 5, 9),
        ("traced", (2, 1, 2048), 64, 128),
    ):
        args = (torch.zeros(shape, dtype=torch.int32), block_size, blocks)
        fill(args, {}, generator)
        yield Sample(kind=kind, args=args, kwargs={})
    edges = torch.tensor([[[-1, -64, 5, 6]], [[11, 12, 2**31 - 1, -(2**31)]]], dtype=torch.int32)
    yield Sample(kind="corner", args=(edges, 6, 2), kwargs={})
    yield Sample(kind="corner", args=(edges, 1, 0), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(2, 0, 3, dtype=torch.int32), 8, 3), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="blocks of a paged cache that sparse decode reads",
    schema="(Tensor indices, int block_size, int blocks) -> Tensor",
    mathematics="bit n is set where some index i of the batch row has floor(i / block_size) = n",
    source="block sparse decode over a paged cache; indices as in FlashMLA's decode (page * page size + offset)",
    reference=reference,
    fake=fake,
    fill=fill,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(ratio=1.0, ceiling=0.0, ulps=0.0, reason="bits: one right answer"),
    attributes=(
        Attribute(name="block_size", meaning="tokens in a page: 64 in most kernels, larger in hybrid caches"),
        Attribute(name="blocks", meaning="how many pages exist"),
    ),
    verified_against="sets of integers in Python",
)

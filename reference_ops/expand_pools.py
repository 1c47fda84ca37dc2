"""Turn chosen pools of tokens into tokens, and add those after the last complete pool.

Shape suffixes: B batch, S queries, N chosen pools, P tokens in a pool, K = N P + P - 1 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance
from day0.reference_ops._write import write
from day0.reference_ops.topk_from_masked import front

__all__ = ["NAME", "OP", "fake", "reference", "validate"]

NAME = "day0::expand_pools"


def validate(pools_BSN: torch.Tensor, first_valid_B: torch.Tensor, size: int, first_position: int, keys: int) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("pools", pools_BSN, "BSN")
    check.shape("first_valid", first_valid_B, "B")
    check.dtype("pools", pools_BSN, torch.int32)
    check.dtype("first_valid", first_valid_B, torch.int32, torch.int64)
    check.true("size", size >= 1, "at least 1", size)
    check.true("first_position", first_position >= 0, "a position of 0 or more", first_position)
    check.true("keys", 0 <= keys < 2**31, "0 or more keys that int32 can count", keys)


def reference(
    pools_BSN: torch.Tensor, first_valid_B: torch.Tensor, size: int, first_position: int, keys: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token indices [B, S, K] int32, valid ones first, then -1; and their number [B, S] int32.

    The query at row s stands at `first_position + s` and sees the tokens from `first_valid` up to there, as far as
    there are `keys`. A pool counts only if its last token is visible; pools keep their order. After them come the
    visible tokens behind the last complete pool, whether or not any pool was chosen. A query in the padding has none.
    """
    validate(pools_BSN, first_valid_B, size, first_position, keys)
    device = pools_BSN.device
    first_B11 = first_valid_B.to(torch.int64).clamp(min=0)[:, None, None]
    position_S1 = torch.arange(pools_BSN.shape[1], device=device)[:, None] + first_position
    # How many tokens each query sees, [B, S, 1].
    visible_BS1 = (torch.clamp(position_S1 + 1, max=keys) - first_B11).clamp(min=0)
    complete_BS1 = torch.div(visible_BS1, size, rounding_mode="floor")
    chosen_BSN = (pools_BSN >= 0) & (pools_BSN < complete_BS1)
    inside_BSK = pools_BSN.to(torch.int64)[..., None] * size + torch.arange(size, device=device)
    tail_BSK = complete_BS1 * size + torch.arange(size - 1, device=device)
    token_BSK = first_B11 + torch.cat((inside_BSK.flatten(-2), tail_BSK), dim=-1)
    valid_BSK = torch.cat((chosen_BSN.repeat_interleave(size, dim=-1), tail_BSK < visible_BS1), dim=-1)
    return front(token_BSK, valid_BSK)


def fake(
    pools_BSN: torch.Tensor, first_valid_B: torch.Tensor, size: int, first_position: int, keys: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    validate(pools_BSN, first_valid_B, size, first_position, keys)
    batch, queries, chosen = pools_BSN.shape
    return (
        pools_BSN.new_empty((batch, queries, chosen * size + size - 1)),
        pools_BSN.new_empty((batch, queries)),
    )


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Distinct pools in any order, some of them not complete yet, -1 after; left padding of another length a row."""
    names = ("pools", "first_valid", "size", "first_position", "keys")
    pools_BSN, first_valid_B, size, _, keys = (args[n] if n < len(args) else kwargs[k] for n, k in enumerate(names))
    batch, queries, chosen = pools_BSN.shape
    order = torch.rand(batch, queries, max(chosen, keys // size), generator=generator).argsort(dim=-1)[..., :chosen]
    kept = torch.randint(0, chosen + 1, (batch, queries, 1), generator=generator)
    write(pools_BSN, torch.where(torch.arange(chosen) < kept, order, -1))
    first = torch.randint(0, max(1, keys // 2), first_valid_B.shape, generator=generator)
    first[:1] = 0
    write(first_valid_B, first)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, pools of 3 in the middle of a context, of 1, nothing to see, nothing chosen, and 2048 tokens in 16s."""
    for kind, shape, size, first, keys, dtype in (
        ("small", (1, 6, 2), 2, 0, 6, torch.int64),
        ("odd", (3, 5, 4), 3, 9, 14, torch.int32),
        ("corner", (2, 3, 4), 1, 2, 5, torch.int64),
        ("corner", (2, 2, 0), 4, 5, 7, torch.int64),
        ("corner", (1, 0, 2), 4, 5, 7, torch.int64),
        ("traced", (2, 2, 128), 16, 2100, 2102, torch.int64),
    ):
        args = (torch.zeros(shape, dtype=torch.int32), torch.zeros(shape[0], dtype=dtype), size, first, keys)
        fill(args, {}, generator)
        yield Sample(kind=kind, args=args, kwargs={})
    strange = torch.tensor([[[0, -9, 2**31 - 1], [1, 1, -1]]], dtype=torch.int32).repeat(3, 1, 1)
    yield Sample(kind="corner", args=(strange, torch.tensor([-2, 1, 99]), 2, 3, 9), kwargs={})
    yield Sample(kind="corner", args=(strange, torch.tensor([0, 1, 2]), 2, 3, 0), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="chosen token pools to token indices, with the incomplete tail",
    schema="(Tensor pools, Tensor first_valid, int size, int first_position, int keys) -> (Tensor, Tensor)",
    mathematics="n -> first_valid + n P + (0 .. P-1) where the last is visible; then the visible tokens behind the "
    "last complete pool; -1 after; and their number",
    source="transformers models/glm5_next (GLM-5.3-Flash)",
    reference=reference,
    fake=fake,
    fill=fill,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(ratio=1.0, ceiling=0.0, ulps=0.0, reason="integers: one right answer"),
    attributes=(
        Attribute(name="size", meaning="tokens in a pool: 16 in GLM-5.3-Flash"),
        Attribute(name="width", meaning="N P + P - 1: buffers of topk tokens are too small; kernels may round up more"),
        Attribute(name="tail", meaning="always added here; index_kpool_always_select_tail false is another contract"),
        Attribute(name="first_valid", meaning="left padding shifts the pools: they begin at the first real token"),
        Attribute(name="padding", meaning="on the left only; a hole inside the tokens is another contract"),
    ),
    verified_against="transformers glm5_next Glm5NextTextIndexer; a loop in Python",
)

"""Turn a selection that may hold masked positions into one that holds -1 instead.

Where fewer than topk tokens are visible, some models return positions of future tokens and count on a causal mask
being applied again. Kernels that read every index but -1 would then read the future, in short contexts only.

Shape suffixes: B batch, S queries, K chosen tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance
from day0.reference_ops._write import write

__all__ = ["NAME", "OP", "fake", "front", "reference", "validate"]

NAME = "day0::topk_from_masked"


def validate(indices_BSK: torch.Tensor, first_position: int, keys: int) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("indices", indices_BSK, "BSK")
    check.dtype("indices", indices_BSK, torch.int32, torch.int64)
    check.true("first_position", first_position >= 0, "a position of 0 or more", first_position)
    check.true("keys", 0 <= keys < 2**31, "0 or more keys that int32 can count", keys)


def reference(indices_BSK: torch.Tensor, first_position: int, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return indices [B, S, K] int32, the visible ones first in the order given, then -1; and their number [B, S] int32.

    The query at row s stands at position `first_position + s` and sees tokens up to that position, as far as there
    are `keys`. An index that is given twice stays twice.
    """
    validate(indices_BSK, first_position, keys)
    position_S1 = torch.arange(indices_BSK.shape[1], device=indices_BSK.device)[:, None] + first_position
    visible_BSK = (indices_BSK >= 0) & (indices_BSK <= position_S1) & (indices_BSK < keys)
    return front(indices_BSK, visible_BSK)


def front(indices: torch.Tensor, valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int32 indices with the valid ones first in their order and -1 after, and their number."""
    order = torch.sort((~valid).to(torch.int8), dim=-1, stable=True).indices
    moved = torch.where(valid, indices, -1).gather(-1, order).to(torch.int32)
    return moved, valid.sum(dim=-1, dtype=torch.int32)


def fake(indices_BSK: torch.Tensor, first_position: int, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    validate(indices_BSK, first_position, keys)
    return (
        indices_BSK.new_empty(indices_BSK.shape, dtype=torch.int32),
        indices_BSK.new_empty(indices_BSK.shape[:2], dtype=torch.int32),
    )


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Distinct positions in any order, as a top-k gives them, future ones among them."""
    indices_BSK, keys = args[0], args[2] if len(args) > 2 else kwargs["keys"]
    chosen = indices_BSK.shape[-1]
    order = torch.rand((*indices_BSK.shape[:2], max(keys, chosen)), generator=generator).argsort(dim=-1)
    write(indices_BSK, order[..., :chosen])


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Prefill from position 0, int64 in the middle of a context, and rows with nothing to see or nothing given."""
    for kind, shape, first, keys, dtype in (
        ("small", (1, 4, 3), 0, 4, torch.int32),
        ("odd", (2, 5, 7), 3, 9, torch.int64),
        ("odd", (2, 3, 11), 2, 6, torch.int64),
        ("traced", (1, 2, 2048), 1000, 2048, torch.int32),
    ):
        args = (torch.zeros(shape, dtype=dtype), first, keys)
        fill(args, {}, generator)
        yield Sample(kind=kind, args=args, kwargs={})
    strange = torch.tensor([[[5, -1, 0, -7, 2**40], [1, 1, 2, 0, 3]]])
    yield Sample(kind="corner", args=(strange, 0, 8), kwargs={})
    yield Sample(kind="corner", args=(strange.to(torch.int32), 4, 0), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(1, 2, 0, dtype=torch.int32), 0, 2), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="selection with masked positions to one with -1",
    schema="(Tensor indices, int first_position, int keys) -> (Tensor, Tensor)",
    mathematics="keep i where 0 <= i <= first_position + s and i < keys, in the order given; -1 after; and their number",
    source="transformers deepseek_v32, glm_moe_dsa, hy_v4, mistral_large4 against the interface of FlashMLA",
    reference=reference,
    fake=fake,
    fill=fill,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(ratio=1.0, ceiling=0.0, ulps=0.0, reason="integers are moved, not computed: one right answer"),
    attributes=(
        Attribute(name="first_position", meaning="where the first query stands: the number of tokens in the cache"),
        Attribute(name="keys", meaning="how many tokens exist"),
        Attribute(name="padding", meaning="holes in a batch are not known here: close them in the logits instead"),
    ),
    verified_against="the mask that transformers deepseek_v32 attends with; a loop in Python",
)

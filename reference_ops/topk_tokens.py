"""Choose the tokens that sparse attention reads.

Shape suffixes: B batch, S queries, T keys, K chosen tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["OP", "fake", "reference", "validate"]

NAME = "day0::topk_tokens"


def validate(logits_BST: torch.Tensor, topk: int) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("logits", logits_BST, "BST")
    check.floating("logits", logits_BST)
    check.true("topk", topk >= 1, "at least 1", topk)


def reference(logits_BST: torch.Tensor, topk: int) -> torch.Tensor:
    """Return indices [B, S, K] int32: the chosen tokens first, by falling score, ties by rising index, then -1.

    Tokens with logit -inf or NaN are never chosen. K is `topk`, also when fewer keys exist.
    """
    validate(logits_BST, topk)
    # A descending stable sort keeps equal scores in the order of their index.
    scores_BST = torch.where(torch.isnan(logits_BST), float("-inf"), logits_BST)
    sorted_BST, order_BST = torch.sort(scores_BST, dim=-1, descending=True, stable=True)
    order_BST = torch.where(torch.isneginf(sorted_BST), -1, order_BST)
    chosen_BSK = order_BST[..., :topk].to(torch.int32)
    missing = topk - chosen_BSK.shape[-1]
    return torch.nn.functional.pad(chosen_BSK, (0, missing), value=-1) if missing > 0 else chosen_BSK.contiguous()


def fake(logits_BST: torch.Tensor, topk: int) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(logits_BST, topk)
    return logits_BST.new_empty((logits_BST.shape[0], logits_BST.shape[1], topk), dtype=torch.int32)


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Close the future, as the indexer does: the last query sees every key."""
    logits_BST = args[0]
    queries, keys = logits_BST.shape[1:]
    hidden = torch.arange(keys)[None, :] > torch.arange(queries)[:, None] + (keys - queries)
    logits_BST.masked_fill_(hidden, float("-inf"))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, ties everywhere, and rows with fewer visible keys than topk."""
    yield Sample(kind="small", args=(torch.randn(1, 4, 16, generator=generator), 4), kwargs={})
    ties_BST = torch.randint(-1, 2, (2, 3, 13), generator=generator).float()
    yield Sample(kind="odd", args=(ties_BST, 5), kwargs={})
    closed_BST = torch.full((1, 2, 3), float("-inf"))
    closed_BST[0, 1, 1] = float("nan")
    closed_BST[0, 1, 2] = 1.0
    yield Sample(kind="corner", args=(closed_BST, 8), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="token selection of sparse attention (top-k of index logits)",
    schema="(Tensor logits, int topk) -> Tensor",
    mathematics="the topk largest logits per row, -inf and NaN left out; ties by rising index; -1 after the valid ones",
    source="FlashMLA and DeepGEMM interfaces (valid entries first, -1 after)",
    reference=reference,
    fake=fake,
    fill=fill,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(
        ratio=1.0,
        ceiling=0.0,
        ulps=0.0,
        reason="falling score, ties by rising index, -1 last: one right answer, on which all ranks have to agree",
    ),
    attributes=(Attribute(name="topk", meaning="how many tokens a query attends to"),),
    verified_against="Python's sort",
)

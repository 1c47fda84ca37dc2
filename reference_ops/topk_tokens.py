"""Choose the tokens that sparse attention reads.

Shape suffixes: B batch, S queries, T keys, K chosen tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance
from day0.reference_ops._write import write

__all__ = ["NAME", "OP", "fake", "reference", "validate"]

NAME = "day0::topk_tokens"


def validate(logits_BST: torch.Tensor, topk: int, lengths_BS: torch.Tensor | None = None) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("logits", logits_BST, "BST")
    check.floating("logits", logits_BST)
    check.true("topk", topk >= 1, "at least 1", topk)
    if lengths_BS is not None:
        check.shape("lengths", lengths_BS, "BS")
        check.dtype("lengths", lengths_BS, torch.int32)


def reference(
    logits_BST: torch.Tensor, topk: int, lengths_BS: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return indices [B, S, K] int32 and how many of them are valid, [B, S] int32.

    The chosen tokens come first, by falling score, ties by rising index, then -1. Tokens with logit -inf or NaN are
    never chosen, nor those at or beyond `lengths`; a length below 0 is 0, one beyond T is T. K is `topk`, also when
    fewer keys exist.
    """
    validate(logits_BST, topk, lengths_BS)
    closed_BST = torch.isnan(logits_BST)
    if lengths_BS is not None:
        closed_BST = closed_BST | (
            torch.arange(logits_BST.shape[-1], device=logits_BST.device) >= lengths_BS[..., None]
        )
    # A descending stable sort keeps equal scores in the order of their index.
    scores_BST = torch.where(closed_BST, float("-inf"), logits_BST)
    sorted_BST, order_BST = torch.sort(scores_BST, dim=-1, descending=True, stable=True)
    order_BST = torch.where(torch.isneginf(sorted_BST), -1, order_BST)
    chosen_BSK = order_BST.new_full((*order_BST.shape[:2], topk), -1, dtype=torch.int32)
    chosen_BSK[..., : order_BST.shape[-1]] = order_BST[..., :topk]
    return chosen_BSK, (chosen_BSK >= 0).sum(dim=-1, dtype=torch.int32)


def fake(
    logits_BST: torch.Tensor, topk: int, lengths_BS: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    validate(logits_BST, topk, lengths_BS)
    batch, queries = logits_BST.shape[:2]
    return (
        logits_BST.new_empty((batch, queries, topk), dtype=torch.int32),
        logits_BST.new_empty((batch, queries), dtype=torch.int32),
    )


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Close the future, as the indexer does: the last query sees every key. Lengths go from 0 to all of them."""
    logits_BST = args[0]
    queries, keys = logits_BST.shape[1:]
    hidden = torch.arange(keys)[None, :] > torch.arange(queries)[:, None] + (keys - queries)
    write(logits_BST, logits_BST.masked_fill(hidden, float("-inf")))
    lengths_BS = args[2] if len(args) > 2 else kwargs.get("lengths")
    if lengths_BS is not None:
        values = torch.randint(0, keys + 1, lengths_BS.shape, generator=generator)
        values.view(-1)[:1] = keys
        values.view(-1)[1:2] = 0
        write(lengths_BS, values)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, ties everywhere, fewer open keys than topk, no tokens, and the 2048 of 4096 of real models."""
    yield Sample(kind="small", args=(torch.randn(1, 4, 16, generator=generator), 4), kwargs={})
    ties_BST = torch.randint(-1, 2, (2, 3, 13), generator=generator).float()
    yield Sample(kind="odd", args=(ties_BST, 5), kwargs={})
    closed_BST = torch.full((1, 2, 3), float("-inf"))
    closed_BST[0, 1, 1] = float("nan")
    closed_BST[0, 1, 2] = 1.0
    yield Sample(kind="corner", args=(closed_BST, 8), kwargs={})
    # Lengths below 0 and beyond the keys, and a better score just outside.
    lengths_BS = torch.tensor([[-3, 0, 1], [5, 13, 99]], dtype=torch.int32)
    yield Sample(kind="odd", args=(ties_BST.cummax(dim=-1).values, 6, lengths_BS), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(2, 3, 0), 2, torch.zeros(2, 3, dtype=torch.int32)), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(1, 0, 4), 2), kwargs={})
    many_BST = torch.randn(1, 2, 4096, generator=generator)
    yield Sample(kind="traced", args=(many_BST, 2048, torch.tensor([[1500, 4095]], dtype=torch.int32)), kwargs={})


OP = Operator(
    name=NAME,
    version=2,
    summary="token selection of sparse attention (top-k of index logits)",
    schema="(Tensor logits, int topk, Tensor? lengths=None) -> (Tensor, Tensor)",
    mathematics="the topk largest logits per row below lengths, -inf and NaN left out; ties by rising index; -1 after "
    "the valid ones; and how many are valid",
    source="FlashMLA and DeepGEMM interfaces (valid entries first, -1 after, topk_length)",
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
    attributes=(
        Attribute(name="topk", meaning="how many tokens, or pools of tokens, a query attends to"),
        Attribute(
            name="lengths",
            meaning="how many keys a query may see, where the logits are not closed already: padded batches, pools",
        ),
        Attribute(
            name="short rows",
            meaning="-1 here where fewer than topk are visible; transformers returns masked positions instead, "
            "see day0::topk_from_masked",
        ),
        Attribute(name="index sharing", meaning="layers without an indexer reuse these results: no call, no weights"),
    ),
    verified_against="NumPy's stable sort; the selections of transformers deepseek_v32, glm_moe_dsa and glm5_next",
)

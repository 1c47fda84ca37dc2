"""The reference's logprobs at the places of an answer, in one dtype; only those of chosen tokens are kept.

Shape suffixes: B batch, S positions, N places of the answer, V vocabulary, K chosen tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from day0.analyzers.golden import Float64Mode
from day0.models.driver import step

__all__ = ["BEST", "Row", "Scored", "Wanted", "continue_greedily", "in_dtype", "score"]

BEST = 20
"""So many of the golden's best tokens are looked at in both dtypes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A prompt and what came after it, [S], of which the last N tokens are judged; and tokens to look at, by place."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    also: tuple[frozenset[int], ...]
    inputs: Mapping[str, Any]

    @property
    def ids(self) -> tuple[int, ...]:
        """The prompt and the answer."""
        return self.prompt + self.answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One place: the best token, logprobs in nats of the chosen tokens, and the largest logit."""

    best: int
    logprobs: Mapping[int, float]
    size: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """All places of one answer."""

    rows: tuple[Row, ...]


@contextmanager
def in_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let a model compute in a dtype throughout: float64 also where its code asks for float32."""
    with torch.no_grad():
        if dtype == torch.float64:
            with Float64Mode():
                yield
        else:
            yield


def score(model: nn.Module, wanted: Wanted, dtype: torch.dtype) -> Scored:
    """Return the model's rows at the places of the answer, all tokens in one pass."""
    if not wanted.answer:
        return Scored(rows=())
    places = len(wanted.answer)
    # The last token is not run: nothing comes after it.
    ids_BS = torch.tensor([wanted.ids[:-1]])
    inputs = dict(wanted.inputs)
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        inputs["logits_to_keep"] = places
    with in_dtype(dtype):
        logits_NV = step(model, ids_BS, use_cache=False, inputs=inputs).logits_BSV[0, -places:]
        return Scored(rows=tuple(_row(logits_V, also) for logits_V, also in zip(logits_NV, wanted.also, strict=True)))


def _row(logits_V: torch.Tensor, also: frozenset[int]) -> Row:
    wide_V = logits_V.to(torch.float64)
    logprobs_V = torch.log_softmax(wide_V, dim=-1)
    best_K = wide_V.topk(min(BEST, wide_V.shape[0])).indices.tolist()
    chosen = sorted({*best_K, *(one for one in also if 0 <= one < wide_V.shape[0])})
    values = logprobs_V[torch.tensor(chosen)].tolist()
    return Row(
        best=int(wide_V.argmax()),
        logprobs=dict(zip(chosen, values, strict=True)),
        size=float(wide_V.abs().max()),
    )


def continue_greedily(
    model: nn.Module, ids: Sequence[int], inputs: Mapping[str, Any], most: int, ends: frozenset[int], dtype: torch.dtype
) -> tuple[int, ...]:
    """Return what the model goes on with, at most so many tokens; one that ends the text is the last."""
    found: list[int] = []
    with in_dtype(dtype):
        output = step(model, torch.tensor([list(ids)]), inputs=inputs)
        while len(found) < most:
            token = int(output.logits_BSV[0, -1].argmax())
            found.append(token)
            if token in ends or len(found) == most:
                break
            output = step(model, torch.tensor([[token]]), output.cache)
    return tuple(found)

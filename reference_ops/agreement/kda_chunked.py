"""Chunked Kimi Delta Attention against flash-linear-attention, transformers, and our own recurrent form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from day0.reference_ops import kda_chunked, kda_recurrent
from day0.reference_ops.agreement._comparison import Comparison, error, load_file, worst
from day0.reference_ops.agreement._kda import TOKENS, long_arguments, prepared
from day0.reference_ops.agreement._widened import Widened

__all__ = ["COMPARISONS"]

Sides = tuple[torch.Tensor, torch.Tensor]
CHUNKED: Callable[..., Sides] = kda_chunked.reference
RECURRENT: Callable[..., Sides] = kda_recurrent.reference


def against(other: Callable[[tuple[torch.Tensor, ...]], Sides], tokens: int, chunk: int) -> float:
    """A state from before; our chunk is another one than theirs."""
    args = long_arguments(2, -5.0, tokens)
    with Widened():
        theirs = other(args)
    return worst(*zip(CHUNKED(*args, chunk), theirs, strict=True))


def recurrent_naive(args: tuple[torch.Tensor, ...]) -> Sides:
    """Call flash-linear-attention's recurrent form."""
    naive = load_file("fla-core", "fla/ops/kda/naive.py")
    q, k, v, g, beta, state = prepared(args)
    out, new = naive.naive_recurrent_kda(q, k, v, g, beta, initial_state=state, output_final_state=True)
    return out, new


def chunked_naive(args: tuple[torch.Tensor, ...]) -> Sides:
    """Call flash-linear-attention's chunked form, whose tokens must fill the chunks."""
    naive = load_file("fla-core", "fla/ops/kda/naive.py")
    q, k, v, g, beta, state = prepared(args)
    out, new = naive.naive_chunk_kda(q, k, v, g, beta, initial_state=state, output_final_state=True, chunk_size=16)
    return out, new


def transformers_kimi(args: tuple[torch.Tensor, ...]) -> Sides:
    """Call the function that the model falls back to."""
    from transformers.models.kimi_linear import modeling_kimi_linear as modeling

    out, new = modeling.chunk_kimi_delta_attention(
        *args[:5], chunk_size=16, initial_state=args[5], output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    return out, new


def recurrent(args: tuple[torch.Tensor, ...]) -> Sides:
    """Call our own token-by-token form."""
    return RECURRENT(*args)


def gradients() -> float:
    """What autograd makes of both of our forms, for every argument."""
    grads = []
    for form in (partial(CHUNKED, chunk=7), RECURRENT):
        args = [arg.requires_grad_() for arg in long_arguments(3, -2.0, 20)]
        out, new = form(*args)
        weight = torch.arange(out.shape[-1], dtype=torch.float64)
        grads.append(torch.autograd.grad((out * weight).sum() + new.square().sum(), args))
    return max(error(mine, other) for mine, other in zip(*grads, strict=True))


COMPARISONS = (
    Comparison(
        operator=kda_chunked.NAME,
        variant="chunk 7, 48 tokens",
        against="fla/ops/kda/naive.py naive_recurrent_kda",
        distribution="fla-core",
        limit=8e-15,
        run=partial(against, recurrent_naive, TOKENS, 7),
    ),
    Comparison(
        operator=kda_chunked.NAME,
        variant="chunk 12, 48 tokens",
        against="fla/ops/kda/naive.py naive_chunk_kda, chunk 16",
        distribution="fla-core",
        limit=8e-15,
        run=partial(against, chunked_naive, TOKENS, 12),
    ),
    Comparison(
        operator=kda_chunked.NAME,
        variant="chunk 16, 37 tokens",
        against="transformers kimi_linear chunk_kimi_delta_attention, chunk 16",
        distribution="transformers",
        limit=8e-15,
        run=partial(against, transformers_kimi, 37, 16),
    ),
    Comparison(
        operator=kda_chunked.NAME,
        variant="chunk 64, 37 tokens",
        against="day0::kda_recurrent",
        distribution="day0",
        limit=8e-15,
        run=partial(against, recurrent, 37, 64),
    ),
    Comparison(
        operator=kda_chunked.NAME,
        variant="gradients",
        against="day0::kda_recurrent",
        distribution="day0",
        limit=5e-15,
        run=gradients,
    ),
)

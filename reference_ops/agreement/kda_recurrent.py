"""Recurrent Kimi Delta Attention against flash-linear-attention and transformers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from day0.reference_ops import kda_recurrent
from day0.reference_ops.agreement._comparison import Comparison, load_file, worst
from day0.reference_ops.agreement._kda import long_arguments, prepared
from day0.reference_ops.agreement._widened import Widened

__all__ = ["COMPARISONS"]

Sides = tuple[torch.Tensor, torch.Tensor]


def against(other: Callable[[tuple[torch.Tensor, ...]], Sides], layout: str) -> float:
    """Forty-eight tokens with a state from before; the other side keeps it as [K, V]."""
    args = long_arguments(1, -5.0)
    q, k, v, g, beta, state_BHKV = args
    state = state_BHKV if layout == "kv" else state_BHKV.transpose(-1, -2).contiguous()
    out, new = kda_recurrent.reference(q, k, v, g, beta, state, layout)
    with Widened():
        their_out, their_new = other(args)
    return worst((out, their_out), (new if layout == "kv" else new.transpose(-1, -2), their_new))


def flash_linear_attention(args: tuple[torch.Tensor, ...]) -> Sides:
    """Call the plain form, which takes queries and keys of length 1."""
    naive = load_file("fla-core", "fla/ops/kda/naive.py")
    q, k, v, g, beta, state = prepared(args)
    out, new = naive.naive_recurrent_kda(q, k, v, g, beta, initial_state=state, output_final_state=True)
    return out, new


def transformers_kimi(args: tuple[torch.Tensor, ...]) -> Sides:
    """Call the function that the model falls back to."""
    from transformers.models.kimi_linear import modeling_kimi_linear as modeling

    out, new = modeling.recurrent_kimi_delta_attention(
        *args[:5], initial_state=args[5], output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    return out, new


COMPARISONS = (
    *(
        Comparison(
            operator=kda_recurrent.NAME,
            variant=f"state {layout}",
            against="fla/ops/kda/naive.py naive_recurrent_kda",
            distribution="fla-core",
            limit=3e-15,
            run=partial(against, flash_linear_attention, layout),
        )
        for layout in ("kv", "vk")
    ),
    Comparison(
        operator=kda_recurrent.NAME,
        variant="state kv",
        against="transformers kimi_linear recurrent_kimi_delta_attention",
        distribution="transformers",
        limit=3e-15,
        run=partial(against, transformers_kimi, "kv"),
    ),
)

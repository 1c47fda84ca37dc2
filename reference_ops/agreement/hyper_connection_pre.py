"""Hyper-connections before a sub-layer against transformers."""

from __future__ import annotations

from functools import partial

import torch

from day0.reference_ops import hyper_connection_pre
from day0.reference_ops.agreement._comparison import Comparison, worst
from day0.reference_ops.agreement._hyper_connections import made, parameters, random_streams
from day0.reference_ops.agreement._widened import Widened

__all__ = ["COMPARISONS"]


def against(model: str, iterations: int) -> float:
    """Their module returns post, comb and the collapsed streams."""
    module, streams_BSnD = made(model, 7, iterations), random_streams(8)
    with torch.no_grad(), Widened():
        post, comb, collapsed = module(streams_BSnD)
    mine = hyper_connection_pre.reference(streams_BSnD, *parameters(module, iterations))
    return worst(*zip(mine, (collapsed, post, comb), strict=True))


COMPARISONS = tuple(
    Comparison(
        operator=hyper_connection_pre.NAME,
        variant=f"{iterations} iterations",
        against=f"transformers {model} hyper-connection",
        distribution="transformers",
        limit=2e-15,
        run=partial(against, model, iterations),
    )
    for model, iterations in (("glm5_next", 20), ("glm5_next", 1), ("deepseek_v4", 20))
)

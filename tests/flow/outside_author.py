"""Wrong kernels as somebody else would bring them: public bugs, written anew from what their reports say.

Given to the check by `--with`; each is registered for the toy's own namespace and preferred there.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from day0.implementation import Implementation
from day0.kernels.torch.mxfp4_decode import by_table
from day0.kernels.torch.sparse_mla_decode import from_pages
from day0.reference_ops.moe_router import reference as route


def gate_cut_off(
    raw: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, lower_bound: float | None = None
) -> torch.Tensor:
    """The lower bound taken for a clamp of the unbounded gate, as in early ports of Kimi's linear attention."""
    x = raw.float() + dt_bias.float()
    soft = torch.where(x > 20.0, x, torch.log1p(torch.exp(x)))
    gate = -a_log.float().exp()[:, None] * soft
    return gate if lower_bound is None else gate.clamp(min=lower_bound)


def router_in_bfloat16(logits: torch.Tensor, *rest: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The gate's product kept in bfloat16 (MooreThreads/vllm-musa#20): near ties fall otherwise."""
    return route(logits.to(torch.bfloat16).to(logits.dtype), *rest, **named)


def sum_in_base_two(*args: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-sum-exp of sparse decoding to base 2, where callers merge by the natural one (deepseek-ai/FlashMLA)."""
    out, lse = from_pages(*args, **named)
    return out, lse / math.log(2.0)


def nibbles_from_the_high_end(
    codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, order: str = "low_first"
) -> torch.Tensor:
    """The high nibble of a byte taken for the even element (kekzl/imp#567)."""
    turned = torch.bitwise_or(torch.bitwise_and(codes * 16, 240), codes // 16)
    return by_table(turned.to(torch.uint8), scales, dtype, order)


def _wrong(operator: str, contract: int, run: Any, why: str) -> Implementation:
    return Implementation(
        operator=operator,
        contract=contract,
        namespace="kimi/k3.1",
        id="outside",
        version="1.0",
        kind="kernel",
        run=run,
        why=why,
        rank=1,
    )


IMPLEMENTATIONS = (
    _wrong("day0::kda_gate", 1, gate_cut_off, "one function less to evaluate"),
    _wrong("day0::moe_router", 2, router_in_bfloat16, "half the memory of the logits"),
    _wrong("day0::sparse_mla_decode", 1, sum_in_base_two, "exp2 is what the hardware has"),
    _wrong("day0::mxfp4_decode", 2, nibbles_from_the_high_end, "the order of another checkpoint"),
)
